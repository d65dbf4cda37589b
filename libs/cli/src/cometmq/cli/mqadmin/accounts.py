# SPDX-License-Identifier: Apache-2.0
"""mqadmin's access control commands: accounts, and addresses that need no account."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Final

from cometmq.cli.mqadmin.frame import Column, Family, Reply, Target, TrueFalse, table, time_column
from cometmq.cli.mqadmin.java_text import fields
from cometmq.cli.option_sets import opt
from cometmq.cli.output import print_notes
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.runtime.acl.spelling import doubtful_words

VERSION_COLUMNS: Final = (
    Column("cluster", "#Cluster Name", "%-16s  "),
    Column("broker", "#Broker Name", "%-22s  "),
    Column("address", "#Broker Addr", "%-22s  "),
    Column("file", "#AclFilePath", "%-20s  "),
    Column("version", "#AclConfigVersionNum", "%-22s  "),
    time_column("updated", "#AclLastUpdateTime", "%-22s"),
)
_FIELDS: Final = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
    "defaultGroupPerm", "topicPerms", "groupPerms",
)  # fmt: skip

app = Family()

AccessKey = Annotated[str, opt("-a", "--accessKey", "Name of the account.")]
Text = str | None


@app.asks("updateAclConfig")
async def _update_acl_config(
    admin: AdminClient,
    access_key: AccessKey,
    target: Target,
    secret_key: Annotated[
        Text, opt("-s", "--secretKey", "Secret key; brokers need it, also to change an account.")
    ] = None,
    white_address: Annotated[
        Text, opt("-w", "--whiteRemoteAddress", "Addresses that need no signature.")
    ] = None,
    default_topic_perm: Annotated[
        Text, opt("-i", "--defaultTopicPerm", "Permission for all other topics: DENY, PUB.")
    ] = None,
    default_group_perm: Annotated[
        Text, opt("-u", "--defaultGroupPerm", "Permission for all other groups: DENY, SUB.")
    ] = None,
    topic_perms: Annotated[
        Text, opt("-t", "--topicPerms", "Topic permissions: topicA=DENY,topicB=PUB|SUB.")
    ] = None,
    group_perms: Annotated[
        Text, opt("-g", "--groupPerms", "Group permissions: groupA=DENY,groupB=SUB.")
    ] = None,
    is_admin: Annotated[
        TrueFalse, opt("-m", "--admin", "Whether the account is an administrator.")
    ] = "false",
) -> Reply:
    account = AclAccount(
        access_key=access_key.strip(),
        secret_key=secret_key,
        white_remote_address=white_address,
        admin=is_admin == "true",
        default_topic_perm=default_topic_perm,
        default_group_perm=default_group_perm,
        topic_perms=topic_perms.strip().split(",") if topic_perms else None,
        group_perms=group_perms.strip().split(",") if group_perms else None,
    )
    line = "create or update plain access config to {} success."
    reply = await _changed(admin, target, lambda one: one.put_account(account), line)
    if reply.text:
        _note_doubts([account])
    return reply


@app.asks("deleteAclConfig")
async def _delete_acl_config(admin: AdminClient, access_key: AccessKey, target: Target) -> Reply:
    name = access_key.strip()
    line = "delete plain access config account from {} success."
    reply = await _changed(admin, target, lambda one: one.delete_account(name), line)
    return reply._replace(text=reply.text and f"{reply.text!s}\naccount's accesskey is:{name}")


@app.asks("updateGlobalWhiteAddr")
async def _update_global_white_addr(
    admin: AdminClient,
    addresses: Annotated[
        str,
        opt("-g", "--globalWhiteRemoteAddresses", "Addresses, such as 10.10.103.*,192.168.0.*."),
    ],
    target: Target,
    file: Annotated[
        Text, opt("-p", "--aclFileFullPath", "Account file of the broker to change.")
    ] = None,
) -> Reply:
    wanted = addresses.strip().split(",")
    line = "update global white remote addresses to {} success."
    return await _changed(
        admin, target, lambda one: one.set_white_addresses(wanted, file=file), line
    )


async def _changed(
    admin: AdminClient, target: Target, change: Callable[[BrokerAdmin], Awaitable[None]], line: str
) -> Reply:
    """Apply a change to slaves as well as masters, because each broker has its own files."""
    done, failed = await target.ask(admin, change, with_slaves=True)
    return Reply(
        "\n".join(map(line.format, done)), {"brokers": list(done)} if done else None, failed
    )


@app.asks("clusterAclConfigVersion")
async def _cluster_acl_config_version(admin: AdminClient, target: Target) -> Reply:
    found, failed = await target.ask(admin, lambda one: one.acl_versions())
    if not found:
        return Reply(failed=failed)
    rows = [
        (
            *(one.cluster, one.broker_name, one.broker_address, file),
            *(version.counter, version.timestamp),
        )
        for one in found.values()
        for file, version in one.files.items()
    ]
    text, facts, _ = table(VERSION_COLUMNS, rows, has_heading=target.cluster is not None)
    whose = "cluster" if target.broker is None else "broker"
    lines = [str(text), f"get {whose}'s plain access config version success."]
    return Reply("\n".join(filter(None, lines)), facts, failed)


@app.asks("getAclConfig")
async def _get_acl_config(admin: AdminClient, target: Target) -> Reply:
    found, failed = await target.ask(admin, lambda one: one.acl_config())
    _note_doubts(account for config in found.values() for account in config.plain_access_configs)
    return Reply("\n".join(map(_text, found.values())), found, failed)


def _text(config: AclConfig) -> str:
    lines = [f"\nglobalWhiteRemoteAddresses: {_shown(config.global_white_addrs)}\n", "accounts:"]
    for account in config.plain_access_configs:
        lines += [f"  {name:<18}: {_shown(it)}" for name, it in fields(account, _FIELDS)]
        lines.append("")
    return "\n".join(lines)


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
