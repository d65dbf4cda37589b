# SPDX-License-Identifier: Apache-2.0
"""The addresses of the API server and of the pods, in a file that all programs read.

In a cluster, the name of a pod gives its address, and all brokers have the same ports. Here a pod's
address is 127.77.G.N, where G is the number of its group and N its own number plus one: Linux
serves all of 127.0.0.0/8 without configuration or rights.
"""

import sys
from pathlib import Path
from typing import Final, Self

import msgspec

from cometmq.ha.places.kubernetes import KubernetesRecord
from cometmq.operator.api import ApiServer
from cometmq.operator.broker_groups.group import MEMBERS_MAX
from cometmq.peers.ports import HOST

GROUPS_MAX: Final = 250


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """One API server, and one namespace of groups with names such as `group-7`."""

    api_port: int
    ca: str
    """File of the server's certificate."""
    token: str
    """File of an administrator's token; in a pod it is a file, too."""
    namespace: str
    main_port: int
    """Port of every broker; the ports beside it are its VIP and replication ports."""
    control_port: int

    @classmethod
    def load(cls, path: Path) -> Self:
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    def server(self) -> ApiServer:
        """Return the API server as a program in a pod sees it: verified, the token in a file."""
        return ApiServer(host=HOST, port=self.api_port, ca=Path(self.ca), token=Path(self.token))

    def record(self, group: str) -> KubernetesRecord:
        """Return a new client of a group's record, which shares nothing with other clients."""
        return KubernetesRecord(self.server().records(), self.namespace, group)

    def main(self, group: str, ordinal: int) -> str:
        return f"{host_of(group, ordinal)}:{self.main_port}"

    def control(self, group: str, ordinal: int) -> str:
        return f"{host_of(group, ordinal)}:{self.control_port}"

    def settings(self, group: str, ordinal: int, folder: Path) -> dict[str, str]:
        """Return the settings of a broker that depend on the place where it runs."""
        host = host_of(group, ordinal)
        members = (f"{one}={self.main(group, one)}" for one in range(MEMBERS_MAX))
        return {
            "brokerId": str(ordinal),
            "brokerIP1": host,
            "bindAddress": host,
            "controlBindAddress": host,
            "listenPort": str(self.main_port),
            "haListenPort": str(self.main_port + 1),
            "controlPort": str(self.control_port),
            "adminHttpPort": "-1",
            "groupMembers": ";".join(members),
            "groupRecord": "file:/not-used",  # `record` replaces it: a pod's needs its account
            "namesrvAddr": "",
            "storePathRootDir": str(folder),
        }


def group_name(number: int) -> str:
    return f"group-{number}"


def host_of(group: str, ordinal: int) -> str:
    return f"127.77.{int(group.rpartition('-')[2])}.{ordinal + 1}"


def given_cluster() -> Cluster:
    """Return the cluster whose file is the first argument of this program."""
    return Cluster.load(Path(sys.argv[1]))
