# SPDX-License-Identifier: Apache-2.0
"""Headers of access control administration.

All fields are optional on the wire: a request that lacks a field is answered with the code of a
failed change instead of being rejected as malformed.
"""

from cometmq.remoting.types import Header


class UpdateAndCreateAclConfig(Header, frozen=True):
    """Create or change an account; permissions are comma-separated `NAME=PUB|SUB`."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAclConfig(Header, frozen=True):
    """Delete an account."""

    access_key: str | None = None


class GetBrokerClusterAclInfoReply(Header, frozen=True):
    """The versions of a broker's access control files, each as JSON text."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    version: str
    all_acl_file_version: str | None = None


class UpdateGlobalWhiteAddrsConfig(Header, frozen=True):
    """Replace the list of addresses that need no account."""

    global_white_addrs: str | None = None
    acl_file_full_path: str | None = None
