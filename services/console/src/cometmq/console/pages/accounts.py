# SPDX-License-Identifier: Apache-2.0
"""Accounts: their rights, and the answer to "may X send to Y?"."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cometmq.client.admin import AdminClient
from cometmq.console.login.roles import Role
from cometmq.console.web.action import Action, Consequence, Field, Form, Plan, Risk
from cometmq.console.web.page import Page, Shown, View
from cometmq.console.web.problems import bad, missing
from cometmq.console.web.tables import Column
from cometmq.insight.words import command, listed
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import retry_topic
from cometmq.runtime.acl.accounts import Account
from cometmq.runtime.acl.errors import AclError
from cometmq.runtime.acl.permissions import Right, check_resources

PATH: Final = "/accounts"
RIGHTS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")


class AccountRow(NamedTuple):
    """One account, and the brokers that know it. Its secret never leaves this module."""

    name: str
    is_admin: bool
    topic_default: str
    group_default: str
    topics: Sequence[str]
    groups: Sequence[str]
    addresses: str
    brokers: Sequence[str]
    differs: bool
    """Whether brokers have different rights for it."""


class Found(NamedTuple):
    """The accounts of all brokers that tell them."""

    configs: dict[str, AclConfig]
    refusals: dict[str, str]

    def rows(self) -> list[AccountRow]:
        """Return each account once."""
        homes: dict[str, dict[str, AclAccount]] = {}
        for broker, config in self.configs.items():
            for it in config.plain_access_configs:
                homes.setdefault(it.access_key, {})[broker] = it
        return [_row(name, its) for name, its in sorted(homes.items())]

    @property
    def white(self) -> dict[str, list[str]]:
        """The addresses that need no account, by broker."""
        return {it: config.global_white_addrs for it, config in self.configs.items()}


def _row(name: str, homes: dict[str, AclAccount]) -> AccountRow:
    one = next(iter(homes.values()))
    return AccountRow(
        name, one.admin, one.default_topic_perm or "DENY", one.default_group_perm or "DENY",
        sorted(one.topic_perms or ()), sorted(one.group_perms or ()),
        one.white_remote_address or "", sorted(homes), any(it != one for it in homes.values()),
    )  # fmt: skip


async def accounts_of(view: View) -> Found:
    """Ask all masters."""
    found = Found({}, {})
    for name, master in (await view.admin().masters()).items():
        try:
            found.configs[name] = await master.acl_config()
        except CometError as error:
            found.refusals[name] = str(error)
    return found


def columns(view: View) -> list[Column[AccountRow]]:
    """Return the columns of the list."""
    edits = view.user.role >= Role.ADMIN
    return [
        Column("name", "Account", lambda it: it.name,
               link=lambda it: view.href("/account/alter", name=it.name) if edits else ""),
        Column("admin", "Administrator", lambda it: it.is_admin, "flag",
               tone=lambda it: "warn" if it.is_admin else ""),
        Column("topic", "Other topics", lambda it: it.topic_default),
        Column("group", "Other groups", lambda it: it.group_default),
        Column("topics", "Topics", lambda it: it.topics),
        Column("groups", "Groups", lambda it: it.groups),
        Column("white", "Unsigned from", lambda it: it.addresses,
               help="Addresses whose requests need no signature"),
        Column("brokers", "Brokers", lambda it: it.brokers),
        Column("differs", "Differs", lambda it: it.differs, "flag",
               tone=lambda it: "bad" if it.differs else "",
               help="Brokers have different rights for it"),
    ]  # fmt: skip


async def accounts(view: View) -> Shown:
    """List accounts and answer the question, if there is one."""
    found = await accounts_of(view)
    rows = found.rows()
    who, what, name = view.text("who"), view.text("may", "send"), view.text("subject")
    answers = may(found, who, what, name) if who and name else []
    cluster = next((it.cluster for it in (await view.snapshot()).brokers), "CLUSTER")
    table = view.table(
        rows, columns(view), default="name", keep=("who", "may", "subject"),
        search=lambda it: f"{it.name} {' '.join(it.topics)} {' '.join(it.groups)}",
    )  # fmt: skip
    return Shown(
        {
            "accounts": [row._asdict() for row in rows],
            "white_addresses": found.white,
            "answers": [it._asdict() for it in answers],
        },
        command("mqadmin getAccessConfigSubCommand", options=("-c", cluster)),
        view.desk.clock.now_ms(),
        found.refusals if found.configs else {},
        extra={
            "table": table,
            "refusals": found.refusals,
            "is_off": not found.configs,
            "white": found.white,
            "question": {"who": who, "may": what, "subject": name},
            "answers": answers,
            "names": [row.name for row in rows],
        },
    )


class Answer(NamedTuple):
    """Whether an account may do something at one broker, and why."""

    broker: str
    is_allowed: bool
    reason: str


def may(found: Found, who: str, what: str, name: str) -> list[Answer]:
    """Return whether an account may `send` to a topic, `read` it, or `join` a group."""
    if what not in {"send", "read", "join"}:
        raise bad("may must be send, read or join")
    return [Answer(it, *_decision(config, who, what, name)) for it, config in found.configs.items()]


def _decision(config: AclConfig, who: str, what: str, name: str) -> tuple[bool, str]:
    account = next((it for it in config.plain_access_configs if it.access_key == who), None)
    if account is None:
        return False, "this broker does not know the account"
    try:
        own = Account(AclAccount(**{**_fields(account), "secret_key": "x" * 8}))
    except AclError as error:
        return False, f"the account cannot be used: {error}"
    resource = retry_topic(name) if what == "join" else name
    needed = Right.PUB if what == "send" else Right.SUB
    right = own.right_to(resource)
    source = "its right" if resource in own.rights else "the default right"
    if own.is_admin:
        return True, "administrators may do everything"
    return bool(right & needed), f"{source} to {name} is {_word(right)}"


def _fields(account: AclAccount) -> dict[str, Any]:
    return {name: getattr(account, name) for name in account.__struct_fields__}


def _word(right: Right) -> str:
    if right & Right.PUB and right & Right.SUB:
        return "PUB|SUB"
    return "PUB" if right & Right.PUB else "SUB" if right & Right.SUB else "DENY"


# -- changes --------------------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.replace(",", "\n").splitlines() if line.strip()]


async def prepare_alter(view: View) -> Form:
    """Plan an account, new or changed, on all brokers."""
    name = view.text("name")
    found = await accounts_of(view)
    row = next((it for it in found.rows() if it.name == name), None)
    wanted = _wanted(view, row or AccountRow(name, False, "DENY", "DENY", (), (), "", (), False))
    options = [(it, it) for it in RIGHTS]
    fields = [
        Field("name", "Access key", value=name, is_needed=True),
        Field("topic_default", "Right to other topics", "select", wanted.topic_default, options),
        Field("group_default", "Right to other groups", "select", wanted.group_default, options),
        Field("topics", "Rights to topics, one NAME=PUB|SUB per line", "area",
              "\n".join(wanted.topics)),
        Field("groups", "Rights to groups, one NAME=SUB per line", "area",
              "\n".join(wanted.groups)),
        Field("admin", "Administrator", "select", "yes" if wanted.is_admin else "no",
              (("no", "no"), ("yes", "yes"))),
    ]  # fmt: skip
    if not name or not view.text("topic_default"):
        return Form(fields, intro="Create an account, or change the rights of one.")
    _check_rights(wanted)
    homes, account = sorted(found.configs), _account(wanted, view.raw("secret"))

    async def perform(admin: AdminClient) -> str:
        masters = await admin.masters_to_change(None, homes)
        await admin.change_each(
            masters.values(), lambda it: it.put_account(account), f"change the account {name}"
        )
        return f"The account {name} is changed at {listed(homes)}."

    hint = "Brokers do not show it: give the same one again, or a new one; more than 6 characters."
    consequences = [Consequence("Requests of its clients are checked with the new rights at once.")]
    if wanted.is_admin:
        consequences.append(Consequence("Administrators may do everything.", "bad"))
    return Form(
        fields,
        Plan(
            what=f"{'Change' if row else 'Create'} the account {name}",
            subject=name,
            before={} if row is None else _settings(row),
            after=_settings(wanted),
            consequences=consequences,
            command=command("mqadmin updateAclConfig", options=("-a", name)),
            perform=perform,
            leads_to=view.href(PATH),
            refusal="" if homes else "no broker tells its accounts",
            asks=[Field("secret", "Secret key", "password", is_needed=True, help=hint)],
        ),
    )


def _wanted(view: View, row: AccountRow) -> AccountRow:
    """Return an account with the settings that the form gives; it keeps the others."""
    return row._replace(
        is_admin=view.text("admin", "yes" if row.is_admin else "no") == "yes",
        topic_default=view.text("topic_default", row.topic_default),
        group_default=view.text("group_default", row.group_default),
        topics=_lines(view.raw("topics")) or row.topics,
        groups=_lines(view.raw("groups")) or row.groups,
    )


def _check_rights(row: AccountRow) -> None:
    if not {row.topic_default, row.group_default} <= set(RIGHTS):
        raise bad(f"a right is one of {', '.join(RIGHTS)}")
    try:
        check_resources([*row.topics, *row.groups])
    except AclError as error:
        raise bad(str(error)) from error


def _account(row: AccountRow, secret: str) -> AclAccount:
    """Return what brokers are sent; they cannot clear rights, only replace them."""
    topics, groups = list(row.topics) or None, list(row.groups) or None
    defaults = row.group_default, row.topic_default
    return AclAccount(
        row.name, row.is_admin, *defaults, groups, secret, topics, row.addresses or None
    )


def _settings(row: AccountRow) -> dict[str, Any]:
    return {
        "administrator": row.is_admin, "other topics": row.topic_default,
        "other groups": row.group_default, "topics": list(row.topics), "groups": list(row.groups),
    }  # fmt: skip


async def prepare_delete(view: View) -> Form:
    """Plan the end of an account."""
    name = view.needed("name")
    row = next((it for it in (await accounts_of(view)).rows() if it.name == name), None)
    if row is None:
        raise missing(f"no broker that answers knows the account {name}")

    async def perform(admin: AdminClient) -> str:
        masters = await admin.masters_to_change(None, row.brokers)
        await admin.change_each(
            masters.values(), lambda it: it.delete_account(name), f"delete the account {name}"
        )
        return f"The account {name} is deleted."

    return Form(
        [Field("name", "Account", "hidden", name)],
        Plan(
            what=f"Delete the account {name}",
            subject=name,
            before=_settings(row),
            after=None,
            consequences=[Consequence("Its clients are refused at once.", "bad")],
            command=command("mqadmin deleteAccessConfig", options=("-a", name)),
            perform=perform,
            leads_to=view.href(PATH),
        ),
    )


PAGES: Final = (
    Page(PATH, "Accounts", "accounts.html", accounts, menu="Accounts", role=Role.OPERATOR),
)
ACTIONS: Final = (
    Action("account.alter", "/account/alter", "Change the account", Role.ADMIN, Risk.MEDIUM,
           prepare_alter, section=PATH),
    Action("account.delete", "/account/delete", "Delete the account", Role.ADMIN, Risk.HIGH,
           prepare_delete, section=PATH),
)  # fmt: skip
