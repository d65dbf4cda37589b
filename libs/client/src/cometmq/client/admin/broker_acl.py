# SPDX-License-Identifier: Apache-2.0
"""Administration of one broker: access control accounts and white-listed addresses."""

from collections.abc import Iterable

import msgspec

from cometmq.client.admin.calls import BrokerCalls
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands import acl
from cometmq.remoting.errors import RemoteProtocolError


class AclVersions(msgspec.Struct, frozen=True):
    """Versions of a broker's access control files."""

    cluster: str
    broker_name: str
    broker_address: str
    files: dict[str, DataVersion]
    """Keyed by the path of the file on the broker's machine."""


class BrokerAcl(BrokerCalls):
    """Manages access control on one broker; each method sends one request code."""

    async def acl_config(self) -> AclConfig:
        """Return all accounts and the white-listed addresses."""
        return await self._json(AclConfig, Code.GET_BROKER_CLUSTER_ACL_CONFIG)

    async def put_account(self, account: AclAccount) -> None:
        """Create or change an account."""
        header = acl.UpdateAndCreateAclConfig(
            access_key=account.access_key,
            secret_key=account.secret_key,
            white_remote_address=account.white_remote_address,
            admin=account.admin,
            default_topic_perm=account.default_topic_perm,
            default_group_perm=account.default_group_perm,
            topic_perms=_joined(account.topic_perms),
            group_perms=_joined(account.group_perms),
        )
        await self.invoke(Code.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete_account(self, access_key: str) -> None:
        """Delete an account."""
        await self.invoke(Code.DELETE_ACL_CONFIG, acl.DeleteAclConfig(access_key))

    async def set_white_addresses(
        self, addresses: Iterable[str], *, file: str | None = None
    ) -> None:
        """Replace the white-listed addresses in the broker's default file, or in `file` if
        given.
        """
        header = acl.UpdateGlobalWhiteAddrsConfig(",".join(addresses), file)
        await self.invoke(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def acl_versions(self) -> AclVersions:
        """Return the versions of the broker's access control files."""
        reply = (await self.invoke(Code.GET_BROKER_CLUSTER_ACL_INFO)).header
        if not isinstance(reply, acl.GetBrokerClusterAclInfoReply):
            raise RemoteProtocolError("the broker's answer lacks the version of its access control")
        return AclVersions(
            cluster=reply.cluster_name,
            broker_name=reply.broker_name,
            broker_address=reply.broker_addr,
            files=decode_json(
                dict[str, DataVersion], (reply.all_acl_file_version or "{}").encode()
            ),
        )


def _joined(permissions: list[str] | None) -> str | None:
    return None if permissions is None else ",".join(permissions)
