# SPDX-License-Identifier: Apache-2.0
"""Decides from the accounts that a broker returns whether an account may do something, and names
the rule that decides.

It repeats the broker's check of rights (`cometmq.broker.acl.check`) without a request; a test
compares the two. Addresses that need no account are not taken into account.
"""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from cometmq.remoting.bodies.acl import AclConfig
from cometmq.remoting.names import RETRY_PREFIX, TRACE_TOPIC, retry_topic
from cometmq.runtime.acl.accounts import DENIED_BY_DEFAULT, KEY_CHARS_MIN, Account
from cometmq.runtime.acl.errors import AclError
from cometmq.runtime.acl.permissions import Right


class Deed(StrEnum):
    """An action for which a client needs a right."""

    SEND = "send"
    """Send messages to a topic."""
    READ = "read"
    """Read the messages of a topic."""
    JOIN = "join"
    """Be a member of a group; reading the group's topics needs rights of its own."""


class Verdict(NamedTuple):
    """The result: whether the account may do it, and the rule that decides."""

    is_allowed: bool
    rule: str
    """The entry of the accounts file that decides, or the reason why no entry does."""


_SECRET: Final = "x" * KEY_CHARS_MIN
"""Used as the secret of all accounts: brokers do not return secrets, and rights do not depend on
them.
"""


def verdict(config: AclConfig, access_key: str, deed: Deed, name: str) -> Verdict:
    """Return whether an account may do something with a topic or, for JOIN, a group."""
    found = next((it for it in config.plain_access_configs if it.access_key == access_key), None)
    if found is None:
        return Verdict(False, "the broker does not know the account")
    try:
        account = Account(msgspec.structs.replace(found, secret_key=_SECRET))
    except AclError as error:
        return Verdict(False, f"the account cannot be used: {error}")
    resource = retry_topic(name) if deed is Deed.JOIN else name
    if deed is Deed.SEND and resource == TRACE_TOPIC and account.may_trace:
        return Verdict(True, "every account with any right may send traces")
    if account.is_admin and not account.rights:
        return Verdict(True, "admin: true")
    right = account.right_to(resource)
    is_sent = deed is Deed.SEND and not resource.startswith(RETRY_PREFIX)
    needed = Right.PUB if is_sent else Right.SUB
    return Verdict(bool(right & needed) and not right & Right.DENY, _rule(account, resource))


def exempt_addresses(config: AclConfig, access_key: str) -> list[str]:
    """Return the patterns of addresses from which an account may do everything."""
    own = [
        it.white_remote_address or ""
        for it in config.plain_access_configs
        if it.access_key == access_key
    ]
    return [it for it in (*config.global_white_addrs, *own) if it]


def right_word(right: Right) -> str:
    """Return a right as files spell it."""
    if right & Right.DENY:
        return "DENY"
    return "|".join(it.name or "" for it in (Right.PUB, Right.SUB) if right & it)


def _rule(account: Account, resource: str) -> str:
    is_group = resource.startswith(RETRY_PREFIX)
    word = right_word(account.right_to(resource))
    if resource in account.rights:
        plain = resource.removeprefix(RETRY_PREFIX)
        return f"{'groupPerms' if is_group else 'topicPerms'}: {plain}={word}"
    if resource in DENIED_BY_DEFAULT:
        return f"default rights do not cover {resource}"
    return f"{'defaultGroupPerm' if is_group else 'defaultTopicPerm'}: {word}"
