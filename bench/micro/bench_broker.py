# SPDX-License-Identifier: Apache-2.0
"""Time the broker's work for sends and pulls, from received bytes to written answers.

Broker, store and files are real; only the sockets are replaced. Chunks are passed directly to the
connections, and their output is discarded. The figure is the program's processor time in the best
of many short rounds, so other work on the machine has little effect.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final, cast

import uvloop

from cometmq.broker.app import BrokerApp
from cometmq.broker.handlers import HANDLERS
from cometmq.broker.settings import BrokerSettings
from cometmq.peers.ports import free_broker_port
from cometmq.remoting import Request, RequestCode, Serialization
from cometmq.remoting.commands import NoHeader
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.dispatch import Dispatcher, Hooks
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.typed_encode import FrameEncoder
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load

TOPIC: Final = "BENCH"
BODY: Final = b"x" * 128
QUEUE_COUNT: Final = 4
SHAPES: Final = ((8, 32), (32, 8), (64, 1), (1, 1))
TURNS: Final = 8
ROUNDS: Final = 150
PULLS: Final = 100
SUBSCRIPTION, SUSPEND, COMMIT = 4, 2, 1
ENCODER: Final = FrameEncoder()


class Sink:
    """A transport whose peer reads everything immediately."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.count = 0

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return ("127.0.0.1", 40_000 + self._number)

    def set_write_buffer_limits(self, **_: int) -> None:
        """Do nothing: this transport has no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Do nothing: the caller passes the chunks."""

    resume_reading = pause_reading

    def write(self, data: bytes) -> None:
        self.count += 1


def frame(serialization: int, number: int) -> bytes:
    """Return a send as official clients encode it."""
    properties = f"UNIQ_KEY\x017F0000010000{number:020X}\x02WAIT\x01true"
    header = SendMessageV2(
        "bench_group", TOPIC, "TBW102", 4, number % QUEUE_COUNT, 0, 1_700_000_000_000 + number, 0,
        properties,
    )  # fmt: skip
    out: list[Any] = []
    request = Request(RequestCode.SEND_MESSAGE_V2, header, BODY)
    ENCODER.encode_request(out, serialization, number, request)
    return b"".join(map(bytes, out))


def chunks(serialization: int, connections: int, in_flight: int) -> Iterator[list[bytes]]:
    """Yield, for each loop iteration, the chunks that the connections receive."""
    number = 0
    while True:
        turn = []
        for _ in range(connections):
            turn.append(b"".join(frame(serialization, number + n) for n in range(in_flight)))
            number += in_flight
        yield turn


def make_peers(app: BrokerApp, count: int) -> list[PeerProtocol]:
    """Return server connections that have no sockets."""
    server = app._server  # noqa: SLF001
    assert server is not None
    hub = server._hub  # noqa: SLF001
    dispatcher = Dispatcher(HANDLERS, app.broker, Hooks(), hub)
    peers = []
    for number in range(count):
        peer = PeerProtocol(hub, dispatcher)
        peer.connection_made(cast("asyncio.Transport", Sink(number)))
        peers.append(peer)
    return peers


class BestRound:
    """Times rounds and keeps the shortest; profiles them on request."""

    def __init__(self, profile: cProfile.Profile | None = None) -> None:
        self._profile = profile
        self._start_ns = 0
        self.ns = float("inf")

    def __enter__(self) -> None:
        if self._profile is not None:
            self._profile.enable()
        self._start_ns = time.thread_time_ns()

    def __exit__(self, *_: object) -> None:
        self.ns = min(self.ns, time.thread_time_ns() - self._start_ns)
        if self._profile is not None:
            self._profile.disable()


async def feed(peers: list[PeerProtocol], turns: list[list[bytes]]) -> None:
    """Pass each connection its chunk in every loop iteration."""
    for turn in turns:
        for peer, data in zip(peers, turn, strict=True):
            peer.data_received(data)
        await asyncio.sleep(0)


async def measure(app: BrokerApp, serialization: Serialization, connections: int, in_flight: int,
                  profile: cProfile.Profile | None) -> None:  # fmt: skip
    """Measure sends, and print one line."""
    peers = make_peers(app, connections)
    source = chunks(int(serialization), connections, in_flight)
    best = BestRound(profile)
    for _ in range(ROUNDS):
        turns = [next(source) for _ in range(TURNS)]
        with best:
            await feed(peers, turns)
    each = best.ns / (TURNS * connections * in_flight)
    print(f"{serialization.name:9s}{connections:3d} x {in_flight:2d} {each:7.0f} ns a message")
    for peer in peers:
        peer.connection_lost(None)


def pulls(serialization: int, queue_length: int, *, commits: bool = False) -> Iterator[bytes]:
    """Yield pulls that read one queue from beginning to end, repeatedly."""
    number = 0
    flags = SUBSCRIPTION | SUSPEND | (COMMIT if commits else 0)
    while True:
        header = PullMessage(
            f"bench_group_{number % 16}", TOPIC, 0, number * 32 % queue_length, 32, flags, number,
            15_000, 1_700_000_000_000, "*", "TAG",
        )  # fmt: skip
        out: list[Any] = []
        ENCODER.encode_request(out, serialization, number, Request(11, header))
        yield b"".join(map(bytes, out))
        number += 1


def measure_pulls(
    app: BrokerApp, serialization: Serialization, profile: cProfile.Profile | None
) -> None:
    """Measure pulls of 32 messages and print one line."""
    (peer,) = make_peers(app, 1)
    length = app.broker.store.reader.max_offset(TOPIC, 0) // 32 * 32
    source = pulls(int(serialization), length)
    best = BestRound(profile)
    for _ in range(ROUNDS):
        requests = [next(source) for _ in range(PULLS)]
        with best:
            for data in requests:
                peer.data_received(data)
    print(f"{serialization.name:9s} pull   {best.ns / PULLS:7.0f} ns a request of 32")
    peer.connection_lost(None)


async def measure_commits(app: BrokerApp, serialization: Serialization, in_flight: int) -> None:
    """Compare pulls that commit an offset with pulls that do not; print one line.

    The time of a round includes the rest of its loop iteration.
    """
    (peer,) = make_peers(app, 1)
    length = app.broker.store.reader.max_offset(TOPIC, 0) // 32 * 32
    sources = [pulls(int(serialization), length, commits=commits) for commits in (False, True)]
    best = [BestRound(), BestRound()]
    for number in range(2 * ROUNDS):
        source = sources[number % 2]
        turns = [[b"".join(next(source) for _ in range(in_flight))] for _ in range(2 * TURNS)]
        with best[number % 2]:
            await feed([peer], turns)
    without, with_commit = (one.ns / (2 * TURNS * in_flight) for one in best)
    print(
        f"{serialization.name:9s} pull 1 x {in_flight:2d} {without:7.0f} ns,"
        f" with a commit {with_commit:7.0f} ns ({with_commit / without:.3f})"
    )
    peer.connection_lost(None)


def orderly(consumer: int, queue_length: int) -> Iterator[bytes]:
    """Yield the requests of a consumer that alternately locks one queue and pulls from it."""
    number = 0
    body = (
        b'{"clientId":"127.0.0.1@%d","consumerGroup":"bench_orderly",'
        b'"mqSet":[{"brokerName":"broker-a","queueId":%d,"topic":"%s"}]}'
        % (consumer, consumer % QUEUE_COUNT, TOPIC.encode())
    )
    flags = SUBSCRIPTION | SUSPEND | COMMIT
    while True:
        out: list[Any] = []
        ENCODER.encode_request(out, 0, number, Request(RequestCode.LOCK_BATCH_MQ, NoHeader(), body))
        yield b"".join(map(bytes, out))
        offset = number * 32 % queue_length
        header = PullMessage(
            "bench_orderly", TOPIC, consumer % QUEUE_COUNT, offset, 32, flags, offset, 15_000,
            1_700_000_000_000, "*", "TAG",
        )  # fmt: skip
        out = []
        ENCODER.encode_request(out, 0, number, Request(RequestCode.PULL_MESSAGE, header))
        yield b"".join(map(bytes, out))
        number += 1


async def measure_orderly(app: BrokerApp, consumers: int, profile: cProfile.Profile | None) -> None:
    """Measure orderly consumers, each with one request per loop iteration; print one line."""
    peers = make_peers(app, consumers)
    length = app.broker.store.reader.max_offset(TOPIC, 0) // 32 * 32
    sources = [orderly(number, length) for number in range(consumers)]
    best = BestRound(profile)
    for _ in range(ROUNDS):
        turns = [[next(source) for source in sources] for _ in range(2 * TURNS)]
        with best:
            await feed(peers, turns)
    each = best.ns / (TURNS * consumers)
    print(f"orderly {consumers:2d} x 1 {each:7.0f} ns a lock and a pull of 32")
    for peer in peers:
        peer.connection_lost(None)


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cli = {"storePathRootDir": folder, "listenPort": str(free_broker_port())}
        cli["nativeLaneEnable"] = "false"  # bench_lane.py times the native path
        settings = load(BrokerSettings, prefix="BENCH", env={}, cli=cli)
        app = BrokerApp(settings, log=NO_LOG, clock=SystemClock())
        await app.start()
        gc.collect()
        gc.freeze()
        profile = cProfile.Profile() if options.profile else None
        send_profile = profile if options.profile == "send" else None
        pull_profile = profile if options.profile == "pull" else None
        for serialization in (Serialization.JSON, Serialization.ROCKETMQ):
            for connections, in_flight in SHAPES:
                await measure(app, serialization, connections, in_flight, send_profile)
            measure_pulls(app, serialization, pull_profile)
            for in_flight in (1, 8, 32):
                await measure_commits(app, serialization, in_flight)
            if profile is not None:
                break
        orderly_profile = profile if options.profile == "orderly" else None
        for consumers in (1, QUEUE_COUNT):
            await measure_orderly(app, consumers, orderly_profile)
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        await app.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--profile", choices=["send", "pull", "orderly"], help="trace with cProfile instead"
    )
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
