# SPDX-License-Identifier: Apache-2.0
"""Clients that send messages with unique bodies, change tables, take locks, and ask for offsets.

After an error or a timeout, a client switches to another broker. It does not repeat the request:
the oracle judges whether the request was served.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Reply
from cometmq.store.results import PutResult, PutStatus

if TYPE_CHECKING:
    from tests.sim.world import World

TIMEOUT_S: Final = 1.5
RETRY_S: Final = 0.05


class Client:
    """One client with at most a few requests in flight."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.name = f"c{number}"
        self.is_stopped = False
        self.target = 0
        self.sent_count = self.ok_count = 0
        self.broken_count = 0
        """Failed requests that were sent to the master of a settled group."""
        self.acknowledged: set[bytes] = set()
        self._count = 0

    def step(self) -> None:
        """Send one request, or a few at once."""
        if self.is_stopped:
            return
        world, random = self.world, self.world.random
        for _ in range(random.choice((1, 1, 1, 4))):
            self._request()
        world.scheduler.after(random.expovariate(1 / world.plan.think_s), self.step)

    def _request(self) -> None:
        world, random = self.world, self.world.random
        self._count += 1
        kind, key = random.random(), f"{self.name}.{self._count}"
        code, body = Code.SEND_MESSAGE, b""
        if kind < world.plan.send_share:
            body = key.encode() + b"-" * random.choice((1, 2, 30))
        elif kind < 0.88:
            code = Code.UPDATE_AND_CREATE_TOPIC
        elif kind < 0.94:
            code = Code.LOCK_BATCH_MQ
        else:
            code = Code.GET_MAX_OFFSET
        host = world.hosts[f"b{self.target}"]
        is_open = [True]
        self.sent_count += 1
        is_promised = world.has_settled and host.process is not None and host.process.is_master
        reply = partial(self._replied, is_open, body, host.name, is_promised)
        network = world.network

        def arrive() -> None:
            if host.process is not None:
                answer = partial(network.send, host.name, self.name, reply)
                host.process.request(code, {"key": key}, body, answer)
            elif host.is_up:
                network.send(host.name, self.name, reply, None, ConnectionRefusedError())

        network.send(self.name, host.name, arrive)
        world.scheduler.after(TIMEOUT_S, reply, None, TimeoutError())

    def _replied(
        self,
        is_open: list[bool],
        body: bytes,
        name: str,
        is_promised: bool,
        result: Any,
        error: Exception | None,
    ) -> None:
        if not is_open[0]:
            return
        is_open[0] = False
        is_ok = error is None
        if isinstance(result, PutResult):
            is_ok = result.status is PutStatus.PUT_OK
        elif isinstance(result, Reply):
            is_ok = result.code == 0
        if is_ok:
            self.ok_count += 1
            if body:
                self.acknowledged.add(body)
            return
        self.broken_count += is_promised
        if self.world.hosts[name].ordinal == self.target:
            self._turn_elsewhere()

    def _turn_elsewhere(self) -> None:
        world = self.world
        current = world.place.current
        if current is not None and world.random.random() < 0.7:
            self.target = current.record.holder.ordinal
        else:
            self.target = world.random.choice(sorted(world.hosts.values(), key=_ordinal)).ordinal


def _ordinal(host: Any) -> int:
    return int(host.ordinal)
