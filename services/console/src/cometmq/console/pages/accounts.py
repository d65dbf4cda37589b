# SPDX-License-Identifier: Apache-2.0
"""Accounts: their rights, and the answer to "may X send to Y?"."""

from typing import Any, Final

from cometmq.client.admin import AdminClient
from cometmq.console.login.roles import Role
from cometmq.console.rights import AccountRow, told_rights
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import Page, Shown, View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.changes.change import Consequence, Done, Plan, Risk
from cometmq.insight.views.view import Column, address
from cometmq.insight.words import command, listed
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.runtime.acl.errors import AclError
from cometmq.runtime.acl.permissions import check_resources
from cometmq.runtime.acl.verdict import Deed

PATH: Final = "/accounts"
RIGHTS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")


def columns(view: View) -> list[Column[AccountRow]]:
    edits = view.user.role >= Role.ADMIN
    return [
        Column("name", "Account", lambda it: it.name,
               link=lambda it: address("/account/alter", name=it.name) if edits else ""),
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
    found = await told_rights(view.admin())
    rows = found.rows()
    who, name, deed = view.text("who"), view.text("subject"), _deed(view.text("may", Deed.SEND))
    answers = found.answers(who, deed, name) if who and name else []
    shown = command("account may", who, deed, name) if answers else command("account list")
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
        shown,
        view.desk.clock.now_ms(),
        found.refusals if found.configs else {},
        extra={
            "table": table,
            "refusals": found.refusals,
            "is_off": not found.configs,
            "exempt": found.exempt(who),
            "white": found.white,
            "question": {"who": who, "may": deed, "subject": name},
            "answers": answers,
            "names": [row.name for row in rows],
        },
    )


def _deed(text: str) -> Deed:
    try:
        return Deed(text)
    except ValueError:
        raise bad(f"may must be {', '.join(Deed)}") from None


# -- changes --------------------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.replace(",", "\n").splitlines() if line.strip()]


async def prepare_alter(view: View) -> Form:
    """Plan an account, new or changed, on all brokers."""
    name = view.text("name")
    found = await told_rights(view.admin())
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

    async def perform(admin: AdminClient) -> Done:
        masters = await admin.masters_to_change(None, homes)
        await admin.change_each(
            masters.values(), lambda it: it.put_account(account), f"change the account {name}"
        )
        return Done(f"The account {name} is changed at {listed(homes)}.")

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
    """Return an account with the settings in the form; the other settings are unchanged."""
    return row._replace(
        is_admin=view.text("admin", "yes" if row.is_admin else "no") == "yes",
        topic_default=view.text("topic_default", row.topic_default),
        group_default=view.text("group_default", row.group_default),
        topics=tuple(_lines(view.raw("topics"))) or row.topics,
        groups=tuple(_lines(view.raw("groups"))) or row.groups,
    )


def _check_rights(row: AccountRow) -> None:
    if not {row.topic_default, row.group_default} <= set(RIGHTS):
        raise bad(f"a right is one of {', '.join(RIGHTS)}")
    try:
        check_resources([*row.topics, *row.groups])
    except AclError as error:
        raise bad(str(error)) from error


def _account(row: AccountRow, secret: str) -> AclAccount:
    """Return the account to send to brokers, which can replace rights, but not remove them."""
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
    name = view.needed("name")
    row = next((it for it in (await told_rights(view.admin())).rows() if it.name == name), None)
    if row is None:
        raise missing(f"no broker that answers knows the account {name}")

    async def perform(admin: AdminClient) -> Done:
        masters = await admin.masters_to_change(None, row.brokers)
        await admin.change_each(
            masters.values(), lambda it: it.delete_account(name), f"delete the account {name}"
        )
        return Done(f"The account {name} is deleted.")

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
           prepare_alter, section=PATH, by_post=True),
    Action("account.delete", "/account/delete", "Delete the account", Role.ADMIN, Risk.HIGH,
           prepare_delete, section=PATH),
)  # fmt: skip
