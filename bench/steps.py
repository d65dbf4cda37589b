# SPDX-License-Identifier: Apache-2.0
"""Count the Python calls of a request on its way through the broker, and the modules that they are
in. The numbers are exact at any load of the machine; `tests/tidy/test_steps.py` limits them.

A broker with a store and sockets runs in this process. Each journey is one request that the broker
has served before, sent when nothing else is under way; its steps end two turns of the loop after
the answer. A timer may fire meanwhile, so the shortest of several journeys counts.

    .venv/bin/python bench/steps.py --show "native send"
"""

import argparse
import asyncio
import itertools
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

import uvloop

from cometmq.broker.app import BrokerApp
from cometmq.broker.native import IS_BUILT
from cometmq.broker.settings import BrokerSettings
from cometmq.peers.ports import free_broker_port
from cometmq.remoting import Request, RequestCode, Serialization
from cometmq.remoting.commands.offsets import UpdateConsumerOffset
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.commands.topics import UpdateAndCreateTopic
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.typed_encode import FrameEncoder
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load

WARM_COUNT: Final = 24
COUNTED: Final = 40
TOPIC: Final = "STEPS"
BORN_MS: Final = 1_700_000_000_000
ENCODER: Final = FrameEncoder()


class Steps(NamedTuple):
    """The calls of Python functions on a journey, and the modules of these functions."""

    calls: int
    modules: int


class Recorder:
    """Records the calls of the broker's functions, and of functions that these call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (_is_ours(frame) or (frame.f_back and _is_ours(frame.f_back))):
            code = frame.f_code
            self.calls.append((code.co_filename.rpartition("/src/")[2], code.co_qualname))

    @property
    def steps(self) -> Steps:
        return Steps(len(self.calls), len({module for module, _ in self.calls}))


def _is_ours(frame: FrameType) -> bool:
    return "/cometmq/" in frame.f_code.co_filename


def _frame(number: int, code: int, header: Any, body: bytes = b"") -> bytes:
    out: list[Any] = []
    ENCODER.encode_request(out, Serialization.JSON, number, Request(code, header, body))
    return b"".join(map(bytes, out))


def send(number: int) -> bytes:
    properties = f"UNIQ_KEY\x017F0000010000{number:020X}\x02WAIT\x01true"
    header = SendMessageV2("steps", TOPIC, "TBW102", 4, number % 4, 0, BORN_MS, 0, properties)
    return _frame(number, RequestCode.SEND_MESSAGE_V2, header, b"x" * 128)


def pull(number: int) -> bytes:
    flags = 1 | 2 | 4  # commits, may wait, has a subscription
    header = PullMessage(
        "steps", TOPIC, 0, number % 2, 32, flags, number, 15_000, BORN_MS, "*", "TAG"
    )
    return _frame(number, RequestCode.PULL_MESSAGE, header)


def commit_offset(number: int) -> bytes:
    header = UpdateConsumerOffset("steps", TOPIC, 0, number)
    return _frame(number, RequestCode.UPDATE_CONSUMER_OFFSET, header)


def create_topic(number: int) -> bytes:
    header = UpdateAndCreateTopic(f"Created{number}", 4, 4, 6, "TBW102")
    return _frame(number, RequestCode.UPDATE_AND_CREATE_TOPIC, header)


JOURNEYS: Final[dict[str, tuple[bool, Callable[[int], bytes]]]] = {
    "native send": (True, send),
    "native pull": (True, pull),
    "send": (False, send),
    "pull": (False, pull),
    "commit offset": (False, commit_offset),
    "create topic": (False, create_topic),
}
"""For each journey, whether it needs native code, and its requests by number."""


class Client:
    """A connection whose own calls are not recorded."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._loop = asyncio.get_running_loop()
        self._socket = socket.create_connection((host.strip("[]"), int(port)))
        self._socket.setblocking(False)

    async def record(self, request: bytes) -> Recorder:
        """Send a request, and record the calls until two turns of the loop after its answer."""
        recorder, answered = Recorder(), asyncio.Event()
        self._loop.add_reader(self._socket.fileno(), answered.set)
        sys.setprofile(recorder)
        try:
            self._socket.send(request)
            await answered.wait()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        finally:
            sys.setprofile(None)
            self._loop.remove_reader(self._socket.fileno())
        answer = self._socket.recv(1 << 20)
        assert b'"code":0' in answer, answer
        return recorder

    def close(self) -> None:
        self._socket.close()


async def _record_all(
    names: list[str], numbers: Iterator[int], *, is_native: bool
) -> dict[str, Recorder]:
    with tempfile.TemporaryDirectory() as folder:
        cli = {
            "storePathRootDir": folder, "listenPort": str(free_broker_port()),
            "brokerIP1": "127.0.0.1", "nativeLaneEnable": str(is_native).lower(),
        }  # fmt: skip
        settings = load(BrokerSettings, prefix="STEPS", env={}, cli=cli)
        app = BrokerApp(settings, log=NO_LOG, clock=SystemClock())
        await app.start()
        client = Client(app.addresses[0])
        try:
            app.broker.tables.topics.create(TOPIC, queue_nums=4)
            for _ in range(WARM_COUNT):
                await client.record(send(next(numbers)))
            return {name: await _record(client, JOURNEYS[name][1], numbers) for name in names}
        finally:
            client.close()
            await app.stop()


async def _record(
    client: Client, request: Callable[[int], bytes], numbers: Iterator[int]
) -> Recorder:
    for _ in range(WARM_COUNT):
        await client.record(request(next(numbers)))
    recorders = [await client.record(request(next(numbers))) for _ in range(COUNTED)]
    return min(recorders, key=lambda one: one.steps)


def record_journeys() -> dict[str, Recorder]:
    """Return the calls of all journeys, by name; without native code, only of the others."""
    found: dict[str, Recorder] = {}
    numbers = itertools.count(1)
    for is_native in (True, False) if IS_BUILT else (False,):
        names = [name for name, (needs, _) in JOURNEYS.items() if needs is is_native]
        found |= uvloop.run(_record_all(names, numbers, is_native=is_native))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", choices=JOURNEYS, help="list the calls of this journey")
    options = parser.parse_args()
    for name, recorder in record_journeys().items():
        calls, modules = recorder.steps
        print(f"{name:15s}{calls:5d} calls in {modules} modules")
        if name == options.show:
            print("\n".join(f"    {module}: {function}" for module, function in recorder.calls))


if __name__ == "__main__":
    main()
