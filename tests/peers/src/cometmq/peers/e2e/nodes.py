# SPDX-License-Identifier: Apache-2.0
"""Injects faults into nodes and the pod network; the nodes are containers on this machine."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Final

from cometmq.peers.processes import PeerError

_KILL: Final = """
pids=
for one; do
    ctr --namespace k8s.io task kill --signal SIGKILL "$one" &
    pids="$pids $!"
done
for pid in $pids; do wait "$pid" || exit 1; done
"""


def kill_containers(containers: Mapping[str, Sequence[str]]) -> None:
    """Kill containers, listed by node, with kill -9 and all at the same time."""
    commands = [("exec", node, "sh", "-c", _KILL, "sh", *ids) for node, ids in containers.items()]
    with ThreadPoolExecutor(len(commands)) as pool:
        list(pool.map(lambda words: _docker(*words), commands))


@contextmanager
def frozen(node: str) -> Iterator[None]:
    """Freeze all processes of a node: its peers get no reply, as after a power failure."""
    _docker("pause", node)
    try:
        yield
    finally:
        _docker("unpause", node)


@contextmanager
def stopped(node: str) -> Iterator[None]:
    """Kill all processes of a node; restart it on leaving the context."""
    _docker("kill", node)
    try:
        yield
    finally:
        _docker("start", node)


@contextmanager
def cut_off(node: str, address: str, others: list[str]) -> Iterator[None]:
    """Drop all packets between `others` and the pod at `address`, which runs on `node`."""
    with ExitStack() as stack:
        for one, two in product([address], others):
            for source, destination in ((one, two), (two, one)):
                rule = ("FORWARD", "--source", source, "--destination", destination, "-j", "DROP")
                _docker("exec", node, "iptables", "--wait", "--insert", *rule)
                stack.callback(_docker, "exec", node, "iptables", "--wait", "--delete", *rule)
        yield


def _docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"docker {' '.join(words)}: {done.stdout}{done.stderr}")
