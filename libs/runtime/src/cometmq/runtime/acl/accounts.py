# SPDX-License-Identifier: Apache-2.0
"""Accounts as brokers check requests against them: a snapshot that is replaced as a whole when
files change.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.names import (
    CHECK_GROUP,
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    PARKED_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    retry_topic,
)
from cometmq.remoting.signature import Signer
from cometmq.runtime.acl.addresses import Addresses
from cometmq.runtime.acl.errors import AclError
from cometmq.runtime.acl.permissions import Right, parse_resources, parse_right

KEY_CHARS_MIN: Final = 7
SHARED_TOPICS: Final = frozenset({
    HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC, PARKED_TOPIC,
})  # fmt: skip
"""Topics not covered by default rights, because they hold messages of all topics."""
DENIED_BY_DEFAULT: Final[Mapping[str, Right]] = dict.fromkeys(
    (*SHARED_TOPICS, retry_topic(CHECK_GROUP)), Right.DENY
)
"""Topics, and the group that checks transactions, for which only explicit rights count."""


class Account:
    """One account, ready for checking requests."""

    __slots__ = (
        "access_key",
        "config",
        "group_right",
        "is_admin",
        "may_produce",
        "may_trace",
        "rights",
        "signer",
        "topic_right",
        "white_addresses",
    )

    def __init__(self, config: AclAccount) -> None:
        """Parse the values from a file; raise AclError if one is invalid."""
        if not has_keys(config):
            raise AclError("accessKey and secretKey must be longer than 6")
        self.config = config
        self.access_key = config.access_key
        self.signer = Signer(config.secret_key or "")
        self.is_admin = config.admin
        self.white_addresses = Addresses(config.white_remote_address)
        self.topic_right = parse_right(config.default_topic_perm)
        self.group_right = parse_right(config.default_group_perm)
        self.rights: Mapping[str, Right] = {
            **parse_resources(config.group_perms or (), is_group=True),
            **parse_resources(config.topic_perms or (), is_group=False),
        }

        granted = {self.topic_right, self.group_right, *self.rights.values()}
        self.may_produce = self.is_admin or any(
            right & Right.PUB
            for right in (
                self.topic_right,
                *(it for name, it in self.rights.items() if not name.startswith(RETRY_PREFIX)),
            )
        )
        self.may_trace = self.rights.get(TRACE_TOPIC) != Right.DENY and (
            self.is_admin or any(right & (Right.PUB | Right.SUB) for right in granted)
        )

    def right_to(self, resource: str) -> Right:
        """Return the right to a topic or, given its retry topic, to a group."""
        right = self.rights.get(resource)
        if right is not None:
            return right
        if resource in DENIED_BY_DEFAULT:
            return Right.DENY
        return self.group_right if resource.startswith(RETRY_PREFIX) else self.topic_right


class Accounts:
    """The accounts of all files, and the addresses that need no account."""

    def __init__(
        self,
        accounts: Sequence[Account] = (),
        white_addresses: Sequence[Addresses] = (),
        *,
        version: DataVersion,
        versions: Mapping[str, DataVersion],
        doubts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Hold accounts with different access keys.

        `versions` maps each file's path to its version, and `doubts` maps it to the warnings about
        misspelt keys and words in that file.
        """
        self.by_key = {account.access_key: account for account in accounts}
        self.white_addresses = tuple(white_addresses)
        self.version = version
        self.versions = versions
        self.doubts = doubts or {}

    @property
    def is_empty(self) -> bool:
        """Return whether all access is denied: no account and no white address exists."""
        return not (self.by_key or self.white_addresses)


def has_keys(config: AclAccount) -> bool:
    """Return whether the access key and the secret are present and long enough."""
    keys = (config.access_key, config.secret_key)
    return all(key is not None and len(key) >= KEY_CHARS_MIN for key in keys)
