# SPDX-License-Identifier: Apache-2.0
"""Fetch every peer into the cache: `python -m cometmq.peers [NAME ..]`."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from cometmq.peers.clients.cppclient import client_python
from cometmq.peers.clients.environments import grpc_client_python
from cometmq.peers.clients.integrations import integrations_class_path
from cometmq.peers.clients.javaclient import VERSIONS, client_class_path
from cometmq.peers.clients.nodeclient import installed_client
from cometmq.peers.errors import PeerError
from cometmq.peers.java.maven import ROCKETMQ_5_VERSION, server_class_path
from cometmq.peers.java.proxy import proxy_class_path
from cometmq.peers.java.rocketmqtests import tests_class_path


def _fetch_java_clients() -> None:
    for version in VERSIONS:
        client_class_path(version)


FETCHERS: Final[Mapping[str, Callable[[], object]]] = {
    "servers": server_class_path,
    "servers-5": partial(server_class_path, ROCKETMQ_5_VERSION),
    "java": _fetch_java_clients,
    "node": installed_client,
    "integrations": integrations_class_path,
    "tests": tests_class_path,
    "cpp": client_python,
    "grpc": grpc_client_python,
    "proxy": proxy_class_path,
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(FETCHERS))
    if unknown:
        sys.stderr.write(f"peers: unknown: {' '.join(unknown)}; known: {' '.join(FETCHERS)}\n")
        return 2
    try:
        for name in names or FETCHERS:
            FETCHERS[name]()
    except PeerError as exc:
        sys.stderr.write(f"peers: {exc}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
