# SPDX-License-Identifier: Apache-2.0
"""Injects faults into nodes and the pod network; the nodes are containers on this machine."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from typing import Final

from cometmq.peers.errors import PeerError

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
def paused(node: str, container: str) -> Iterator[None]:
    """Send SIGSTOP to the processes of a container; its node and its network continue."""
    task = ("exec", node, "ctr", "--namespace", "k8s.io", "task")
    _docker(*task, "kill", "--all", "--signal", "SIGSTOP", container)
    try:
        yield
    finally:
        with suppress(PeerError):  # the kernel has ended a master that stood still
            _docker(*task, "kill", "--all", "--signal", "SIGCONT", container)


@contextmanager
def cut_off(
    node: str, address: str, others: Sequence[str], *, receives: bool = False, sends: bool = False
) -> Iterator[None]:
    """Drop the packets between `others` and the pod at `address`, which runs on `node`.

    The pod still gets packets if it `receives`, and others get its packets if it `sends`.
    """
    with ExitStack() as stack:
        for other in others:
            pairs = [] if sends else [(address, other)]
            pairs += [] if receives else [(other, address)]
            for source, destination in pairs:
                rule = ("FORWARD", "--source", source, "--destination", destination)
                stack.enter_context(_dropping(node, rule))
        yield


@contextmanager
def unreachable_api(node: str, clients: Sequence[str]) -> Iterator[None]:
    """Drop all packets to the API server on `node` from these addresses or networks."""
    with ExitStack() as stack:
        for chain, source in product(("INPUT", "FORWARD"), clients):
            rule = (chain, "--source", source, "--protocol", "tcp", "--dport", "6443")
            stack.enter_context(_dropping(node, rule))
        yield


@contextmanager
def _dropping(node: str, rule: Sequence[str]) -> Iterator[None]:
    _docker("exec", node, "iptables", "--wait", "--insert", *rule, "--jump", "DROP")
    try:
        yield
    finally:
        _docker("exec", node, "iptables", "--wait", "--delete", *rule, "--jump", "DROP")


def _docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"docker {' '.join(words)}: {done.stdout}{done.stderr}")
