# SPDX-License-Identifier: Apache-2.0
"""Administration of access control: accounts, and the addresses that need no account."""

from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.acl.files import AclFiles
from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.broker import Broker
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.acl import (
    DeleteAclConfig,
    GetBrokerClusterAclInfoReply,
    UpdateAndCreateAclConfig,
    UpdateGlobalWhiteAddrsConfig,
)
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import (
    CodedError,
    CometError,
    DeleteAclConfigFailed,
    ServerError,
    UpdateAndCreateAclConfigFailed,
    UpdateGlobalWhiteAddrsConfigFailed,
)
from cometmq.runtime.acl.accounts import Accounts, has_keys
from cometmq.runtime.acl.errors import AclError, wrong_keys
from cometmq.runtime.acl.permissions import check_resources

MASK: Final = "******"
"""Shown instead of a secret key. It is too short to be valid, so no account gets it by mistake."""
IS_OFF: Final = "access control is off: the broker has aclEnable=false"


async def update_and_create_acl_config(
    broker: Broker, call: Call[UpdateAndCreateAclConfig]
) -> Reply:
    """Create an account, or change the given fields of an existing one."""
    header = call.header
    keeper = _keeper(broker, UpdateAndCreateAclConfigFailed)
    config = AclAccount(
        access_key=header.access_key or "",
        admin=header.admin,
        default_group_perm=header.default_group_perm,
        default_topic_perm=header.default_topic_perm,
        group_perms=_split(header.group_perms),
        secret_key=header.secret_key,
        topic_perms=_split(header.topic_perms),
        white_remote_address=header.white_remote_address,
    )
    if not has_keys(config):
        refusal = wrong_keys(header.access_key, header.secret_key)
        raise UpdateAndCreateAclConfigFailed(refusal)
    try:
        check_resources(config.topic_perms or ())
        check_resources(config.group_perms or ())
    except AclError as error:
        raise UpdateAndCreateAclConfigFailed(str(error)) from error
    await _change(
        keeper, lambda files: files.put_account(config), UpdateAndCreateAclConfigFailed, ""
    )
    broker.log.info("account.changed", peer=call.peer.address, account=config.access_key)
    return OK


async def delete_acl_config(broker: Broker, call: Call[DeleteAclConfig]) -> Reply:
    access_key = call.header.access_key
    await _change(
        _keeper(broker, DeleteAclConfigFailed),
        lambda files: files.delete_account(access_key or ""),
        DeleteAclConfigFailed,
        f"The accesskey[{_shown(access_key)}] corresponding to accessConfig "
        "has been deleted failed.",
    )
    broker.log.info("account.deleted", peer=call.peer.address, account=access_key)
    return OK


async def update_global_white_addrs_config(
    broker: Broker, call: Call[UpdateGlobalWhiteAddrsConfig]
) -> Reply:
    """Replace the addresses that need no account, in plain_acl.yml or another account file."""
    given, path = call.header.global_white_addrs, call.header.acl_file_full_path
    keeper = _keeper(broker, UpdateGlobalWhiteAddrsConfigFailed)
    refusal = f"The globalWhiteAddresses[{_shown(given)}] has been updated failed."
    if given is None:
        raise UpdateGlobalWhiteAddrsConfigFailed(refusal)
    texts = [text for text in given.split(",") if text.strip()]
    await _change(
        keeper,
        lambda files: files.set_white_addresses(texts, path),
        UpdateGlobalWhiteAddrsConfigFailed,
        refusal,
    )
    broker.log.info("white_addresses.changed", peer=call.peer.address, addresses=texts)
    return OK


def get_broker_cluster_acl_info(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Return the versions of the account files, so that tools can compare brokers."""
    accounts = _keeper(broker, ServerError).control.accounts
    return Reply(
        header=GetBrokerClusterAclInfoReply(
            broker_name=broker.settings.broker_name,
            broker_addr=broker.process.address,
            cluster_name=broker.settings.broker_cluster_name,
            version=encode_json(accounts.version).decode(),
            all_acl_file_version=encode_json(accounts.versions).decode(),
        )
    )


def get_broker_cluster_acl_config(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Return all accounts, and the addresses that need no account.

    Secret keys are masked unless the connection is encrypted. Compatibility: RocketMQ always sends
    them.
    """
    accounts = _keeper(broker, ServerError).control.accounts
    configs = [account.config for account in accounts.by_key.values()]
    if not call.peer.is_encrypted:
        configs = [msgspec.structs.replace(it, secret_key=MASK) for it in configs]
    config = AclConfig(
        global_white_addrs=[addresses.text for addresses in accounts.white_addresses],
        plain_access_configs=configs,
    )
    return Reply(body=encode_json(config))


def _keeper(broker: Broker, error: type[CodedError]) -> AclKeeper:
    if broker.admission.acl is None:
        raise error(IS_OFF)
    return broker.admission.acl


async def _change(
    keeper: AclKeeper,
    edit: Callable[[AclFiles], Accounts | None],
    error_type: type[CodedError],
    refusal: str,
) -> None:
    """Change a file; raise CommandError with the reason if that fails."""
    try:
        is_changed = await keeper.change(edit)
    except (AclError, CometError) as error:
        raise error_type(str(error)) from error
    if not is_changed:
        raise error_type(refusal)


def _split(text: str | None) -> list[str] | None:
    return None if text is None else text.split(",")


def _shown(text: str | None) -> str:
    return "null" if text is None else text
