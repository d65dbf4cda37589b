# SPDX-License-Identifier: Apache-2.0
"""The configuration of a workload: what both servers and the generator do beyond the default.

To add a column to the configuration, add a field to `Setup` and a row to `COLUMNS`. Then apply it
to the servers (`apply`), the generator (`generator_options`), and the benchmark's own requests
(`signed`) and consumers (`client_context`).
"""

import base64
import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from cometmq.peers.cluster import Cluster
from cometmq.peers.java import JavaCluster

ADMIN: Final = ("benchAdmin1", "benchAdminSecret1")
USER: Final = ("benchUser1", "benchUserSecret1")
ACCOUNTS: Final = f"""\
accounts:
- accessKey: {ADMIN[0]}
  secretKey: {ADMIN[1]}
  admin: true
- accessKey: {USER[0]}
  secretKey: {USER[1]}
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
"""The accounts of a server with access control: the generator's, and one that creates topics."""


class Column(NamedTuple):
    """The words for a column of the configuration in the names and titles of workloads."""

    field: str
    suffix: str
    title: str


COLUMNS: Final = (
    Column("accounts", "-acl", "accounts"),
    Column("tls", "-tls", "TLS"),
    Column("sync_flush", "-sync", "SYNC_FLUSH"),
)


@dataclass(frozen=True)
class Setup:
    """What a workload demands of both servers and of the generator."""

    accounts: bool = False  # access control, and signed requests
    tls: bool = False  # the generator connects with TLS; both servers offer it by default
    sync_flush: bool = False  # answers wait until the message is on the disk

    @property
    def suffix(self) -> str:
        """The end of the names of workloads with this configuration; empty for the default."""
        return "".join(column.suffix for column in self._columns)

    @property
    def title(self) -> str:
        """The words for this configuration; empty for the default."""
        return " + ".join(column.title for column in self._columns)

    @property
    def _columns(self) -> list[Column]:
        return [column for column in COLUMNS if getattr(self, column.field)]

    @property
    def generator_options(self) -> dict[str, object]:
        """The options of the load generator."""
        keys = {"access_key": USER[0], "secret_key": USER[1]}
        return {**(keys if self.accounts else {}), **({"tls": True} if self.tls else {})}

    @property
    def client_context(self) -> ssl.SSLContext | None:
        """The context of the benchmark's own connections, which trust every server; None without
        TLS.
        """
        if not self.tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def apply(self, cluster: Cluster) -> None:
        """Configure a cluster of either implementation that has not been started."""
        if self.sync_flush:
            cluster.broker_conf["flushDiskType"] = "SYNC_FLUSH"
        if self.accounts:
            cluster.broker_conf["aclEnable"] = True
            folder = "home/conf" if isinstance(cluster, JavaCluster) else ""
            path = cluster.directory / folder / "plain_acl.yml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(ACCOUNTS, encoding="utf-8")

    def signed(self, fields: Mapping[str, str], keys: tuple[str, str] = ADMIN) -> dict[str, str]:
        """Return the fields of the benchmark's own request, which has no body."""
        if not self.accounts:
            return {**fields}
        access_key, secret_key = keys
        keyed = {**fields, "AccessKey": access_key}
        content = "".join(keyed[name] for name in sorted(keyed)).encode()
        digest = hmac.digest(secret_key.encode(), content, "sha1")
        return {**keyed, "Signature": base64.b64encode(digest).decode()}


PLAIN: Final = Setup()
