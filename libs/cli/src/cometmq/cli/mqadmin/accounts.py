# SPDX-License-Identifier: Apache-2.0
"""mqadmin's access control commands: accounts, and addresses that need no account."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Namesrv,
    Target,
    TrueFalse,
    exit_if_any,
    print_done,
    print_table,
    time_column,
)
from cometmq.cli.output import AsJson, print_json, print_notes
from cometmq.cli.say import say
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.errors import CometError
from cometmq.runtime.acl.spelling import doubtful_words

VERSION_COLUMNS: Final = (
    Column("cluster", "#Cluster Name", "%-16s  "),
    Column("broker", "#Broker Name", "%-22s  "),
    Column("address", "#Broker Addr", "%-22s  "),
    Column("file", "#AclFilePath", "%-20s  "),
    Column("version", "#AclConfigVersionNum", "%-22s  "),
    time_column("updated", "#AclLastUpdateTime", "%-22s"),
)

app = Family()

AccessKey = Annotated[str, typer.Option("-a", "--accessKey", help="Name of the account.")]


# -- change -----------------------------------------------------------------------------------


@app.named("updateAclConfig")
def update_acl_config(
    access_key: AccessKey,
    target: Target,
    secret_key: Annotated[
        str | None,
        typer.Option(
            "-s", "--secretKey", help="Secret key; brokers need it, also to change an account."
        ),
    ] = None,
    white_address: Annotated[
        str | None,
        typer.Option("-w", "--whiteRemoteAddress", help="Addresses that need no signature."),
    ] = None,
    default_topic_perm: Annotated[
        str | None,
        typer.Option(
            "-i", "--defaultTopicPerm", help="Permission for all other topics: DENY, PUB."
        ),
    ] = None,
    default_group_perm: Annotated[
        str | None,
        typer.Option(
            "-u", "--defaultGroupPerm", help="Permission for all other groups: DENY, SUB."
        ),
    ] = None,
    topic_perms: Annotated[
        str | None,
        typer.Option("-t", "--topicPerms", help="Topic permissions: topicA=DENY,topicB=PUB|SUB."),
    ] = None,
    group_perms: Annotated[
        str | None,
        typer.Option("-g", "--groupPerms", help="Group permissions: groupA=DENY,groupB=SUB."),
    ] = None,
    admin: Annotated[
        TrueFalse, typer.Option("-m", "--admin", help="Whether the account is an administrator.")
    ] = "false",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Create or update an account."""
    account = AclAccount(
        access_key=access_key.strip(),
        secret_key=secret_key,
        white_remote_address=white_address,
        admin=admin == "true",
        default_topic_perm=default_topic_perm,
        default_group_perm=default_group_perm,
        topic_perms=topic_perms.strip().split(",") if topic_perms else None,
        group_perms=group_perms.strip().split(",") if group_perms else None,
    )
    done, failures = _change(namesrv, target, lambda one: one.put_account(account))
    if done:
        _note_doubts([account])
    lines = [f"create or update plain access config to {address} success." for address in done]
    _print_changed(lines, done, failures, as_json=as_json)


@app.named("deleteAclConfig")
def delete_acl_config(
    access_key: AccessKey,
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Delete an account."""
    name = access_key.strip()
    done, failures = _change(namesrv, target, lambda one: one.delete_account(name))
    lines = [f"delete plain access config account from {address} success." for address in done]
    lines += [f"account's accesskey is:{name}"] if done else []
    _print_changed(lines, done, failures, as_json=as_json)


@app.named("updateGlobalWhiteAddr")
def update_global_white_addr(
    addresses: Annotated[
        str,
        typer.Option(
            "-g", "--globalWhiteRemoteAddresses", help="Addresses, such as 10.10.103.*,192.168.0.*."
        ),
    ],
    target: Target,
    file: Annotated[
        str | None,
        typer.Option("-p", "--aclFileFullPath", help="Account file of the broker to change."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Replace the addresses exempt from access control."""
    wanted = addresses.strip().split(",")
    done, failures = _change(
        namesrv, target, lambda one: one.set_white_addresses(wanted, file=file)
    )
    lines = [f"update global white remote addresses to {address} success." for address in done]
    _print_changed(lines, done, failures, as_json=as_json)


def _change(
    namesrv: str, target: Target, change: Callable[[BrokerAdmin], Awaitable[None]]
) -> tuple[list[str], dict[str, CometError]]:
    """Apply a change to slaves as well as masters, because each broker has its own files."""
    done, failures = target.ask(namesrv, change, with_slaves=True)
    return list(done), failures


def _print_changed(
    lines: list[str], done: list[str], failures: Mapping[str, CometError], *, as_json: bool
) -> None:
    if done:
        print_done("\n".join(lines), {"brokers": done}, as_json=as_json)
    exit_if_any(failures)


# -- show -------------------------------------------------------------------------------------


@app.named("clusterAclConfigVersion")
def cluster_acl_config_version(
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the versions of the access control files of brokers."""
    found, failures = target.ask(namesrv, lambda one: one.acl_versions())
    rows = [
        (
            *(one.cluster, one.broker_name, one.broker_address, file),
            *(version.counter, version.timestamp),
        )
        for one in found.values()
        for file, version in one.files.items()
    ]
    if found:
        print_table(VERSION_COLUMNS, rows, as_json=as_json, has_heading=target.cluster is not None)
        if not as_json:
            whose = "cluster" if target.broker is None else "broker"
            say(f"get {whose}'s plain access config version success.")
    exit_if_any(failures)


@app.named("getAclConfig")
def get_acl_config(
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show all accounts configured on the brokers, including secret keys."""
    found, failures = target.ask(namesrv, lambda one: one.acl_config())
    if as_json:
        print_json(found)
    else:
        for config in found.values():
            _print_config(config)
    _note_doubts(account for config in found.values() for account in config.plain_access_configs)
    exit_if_any(failures)


def _print_config(config: AclConfig) -> None:
    say(f"\nglobalWhiteRemoteAddresses: {_shown(config.global_white_addrs)}\n")
    say("accounts:")
    for account in config.plain_access_configs:
        facts = {
            "accessKey": account.access_key,
            "secretKey": account.secret_key,
            "whiteRemoteAddress": account.white_remote_address,
            "admin": account.admin,
            "defaultTopicPerm": account.default_topic_perm,
            "defaultGroupPerm": account.default_group_perm,
            "topicPerms": account.topic_perms,
            "groupPerms": account.group_perms,
        }
        for name, value in facts.items():
            say(f"  {name:<18}: {_shown(value)}")
        say()


def _note_doubts(accounts: Iterable[AclAccount]) -> None:
    """Warn about words that are not valid rights; brokers treat them as DENY, as RocketMQ's do."""
    lines = (
        f"account {account.access_key}: {text}"
        for account in accounts
        for text in doubtful_words(account)
    )
    print_notes(dict.fromkeys(lines))  # masters and slaves have the same accounts


def _shown(value: str | bool | list[str] | None) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return value or ""
