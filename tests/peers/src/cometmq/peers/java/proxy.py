# SPDX-License-Identifier: Apache-2.0
"""Runs a RocketMQ 5.x broker with its gRPC proxy in one process, as the 5.x clients need."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cometmq.peers.cluster import CLUSTER_NAME
from cometmq.peers.java import JavaCluster
from cometmq.peers.java.maven import server_class_path
from cometmq.peers.ports import HOST, free_port

PROXY_VERSION: Final = "5.3.3"


def proxy_class_path() -> str:
    return server_class_path(PROXY_VERSION, ProxyCluster.programs)


class ProxyCluster(JavaCluster):
    """A broker for 4.x clients with a proxy for 5.x clients; both serve the same topics."""

    programs = "proxy"
    version = PROXY_VERSION

    def __init__(
        self,
        directory: Path,
        broker_conf: Mapping[str, object] | None = None,
        *,
        heap: str = "512m",
    ) -> None:
        super().__init__(directory, broker_conf, heap=heap)
        self._proxy_conf_path = directory / "rmq-proxy.json"
        self.endpoint = f"{HOST}:{free_port()}"

    def _broker_command(self, conf_path: Path) -> list[str]:
        """`ProxyStartup`, which starts the broker as well."""
        conf = {
            "rocketMQClusterName": CLUSTER_NAME,
            "namesrvAddr": self.namesrv_addr,
            "proxyMode": "LOCAL",
            "grpcServerPort": int(self.endpoint.rpartition(":")[2]),
            "remotingListenPort": free_port(),
        }
        self._proxy_conf_path.write_text(json.dumps(conf), encoding="utf-8")
        return [
            *self._java(self._heap, self._jvm_options),
            "org.apache.rocketmq.proxy.ProxyStartup",
            *("-bc", str(conf_path), "-pc", str(self._proxy_conf_path)),
            *("-n", self.namesrv_addr),
        ]

    def _ready_text(self) -> str:
        return "success"
