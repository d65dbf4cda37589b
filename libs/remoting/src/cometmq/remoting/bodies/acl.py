# SPDX-License-Identifier: Apache-2.0
"""Bodies of access control requests."""

import msgspec


class AclAccount(msgspec.Struct, gc=False, rename="camel"):
    """One account; permissions have the form `NAME=PUB|SUB`."""

    access_key: str = ""
    admin: bool = False
    default_group_perm: str | None = None
    default_topic_perm: str | None = None
    group_perms: list[str] | None = None
    secret_key: str | None = None
    topic_perms: list[str] | None = None
    white_remote_address: str | None = None


class AclConfig(msgspec.Struct, gc=False, rename="camel"):
    """Body of GET_BROKER_CLUSTER_ACL_CONFIG."""

    global_white_addrs: list[str] = []
    plain_access_configs: list[AclAccount] = []
