# SPDX-License-Identifier: Apache-2.0
"""A network of hosts that can be partitioned: one namespace per host, and one for the router.

The namespaces have no names and live as long as a process or descriptor uses them, so a killed test
leaves nothing behind. A partition is a routing rule that drops packets; it needs no packet filter.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from cometmq.peers.errors import PeerError
from cometmq.peers.loopback import inside, own_network

OURS: Final = "clients"
"""The host of the test process."""
_CURRENT: Final = "/proc/thread-self/ns/net"
_RULE_PRIORITY: Final = 10
_ROUTER_SETTINGS: Final = (
    "/proc/sys/net/ipv4/ip_forward=1",
    # The reverse-path filter looks up the route back to the source, so it would turn a one-way
    # partition into a two-way one.
    "/proc/sys/net/ipv4/conf/all/rp_filter=0",
    "/proc/sys/net/ipv4/conf/default/rp_filter=0",
)

Direction = tuple[str, str]
"""Sender and receiver of packets."""


class Network:
    """Hosts by name; the test process is the host `clients` while the network exists."""

    def __init__(self, hosts: Sequence[str]) -> None:
        names = [OURS, *(host for host in hosts if host != OURS)]
        self._addresses = {name: f"10.77.{number}.2" for number, name in enumerate(names, 1)}
        self._namespaces: dict[str, int] = {}
        self._router = -1
        self._cut: list[Direction] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Create the namespaces; inside the context, this thread is in `clients`' namespace."""
        _require_root()
        with ExitStack() as stack:
            self._router = stack.enter_context(_namespace())
            for host in self._addresses:
                self._namespaces[host] = stack.enter_context(_namespace())
            self._configure()
            stack.enter_context(inside(self._namespaces[OURS]))
            yield

    def address(self, host: str) -> str:
        return self._addresses[host]

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a program on a host."""
        return _inside(self._namespaces[host], words)

    @property
    def router(self) -> str:
        """The path of the router's namespace, for nsenter."""
        return _path(self._router)

    def lose(self, address: str) -> None:
        """Drop all packets to an address that belongs to no host, until its route is replaced."""
        self._ip(self._router, [f"route replace blackhole {address}/32"])

    def cut(self, directions: Iterable[Direction]) -> None:
        """Drop all packets in these directions until `heal`."""
        new = [one for one in dict.fromkeys(directions) if one not in self._cut]
        self._ip(self._router, [self._rule("add", one) for one in new])
        self._cut += new

    def heal(self) -> None:
        """Deliver all packets again."""
        healed, self._cut = self._cut, []
        self._ip(self._router, [self._rule("del", one) for one in healed])

    def others(self, host: str) -> list[str]:
        return [one for one in self._addresses if one != host]

    def _rule(self, verb: str, direction: Direction) -> str:
        sender, receiver = (self._addresses[host] for host in direction)
        return f"rule {verb} pref {_RULE_PRIORITY} from {sender} to {receiver} blackhole"

    def _configure(self) -> None:
        script = ";".join(
            f"echo {value} >{path}" for path, value in (it.split("=") for it in _ROUTER_SETTINGS)
        )
        _run(_inside(self._router, ["sh", "-ec", script]))
        for number, (host, address) in enumerate(self._addresses.items(), 1):
            gateway, namespace = f"10.77.{number}.1", self._namespaces[host]
            self._ip(
                self._router,
                [
                    f"link add host{number} type veth peer name eth0 netns {_path(namespace)}",
                    f"addr add {gateway}/24 dev host{number}",
                    f"link set host{number} up",
                ],
            )
            self._ip(
                namespace,
                [
                    "link set lo up",
                    f"addr add {address}/24 dev eth0",
                    "link set eth0 up",
                    f"route add default via {gateway}",
                ],
            )

    def _ip(self, namespace: int, lines: list[str]) -> None:
        _run(_inside(namespace, ["ip", "-batch", "-"]), "\n".join(lines) + "\n")


def both_ways(one: str, others: Iterable[str]) -> list[Direction]:
    return [pair for other in others for pair in ((one, other), (other, one))]


def _require_root() -> None:
    if os.geteuid() != 0:
        raise PeerError(
            "partitions and full disks need root: run make ha-test as root, or with sudo"
        )
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        raise PeerError(f"{' and '.join(missing)} missing: install iproute2 and util-linux")


def _run(words: Sequence[str], text: str = "") -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(f"{' '.join(words)}: {done.stderr.strip()}\n{text}")


@contextmanager
def _namespace() -> Iterator[int]:
    """Yield the descriptor of a new network namespace that only this process holds."""
    with own_network():
        descriptor = os.open(_CURRENT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _path(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


def _inside(namespace: int, words: Sequence[str]) -> list[str]:
    return ["nsenter", f"--net={_path(namespace)}", "--", *words]
