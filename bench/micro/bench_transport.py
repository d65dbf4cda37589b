# SPDX-License-Identifier: Apache-2.0
"""Time a send in the server without a store: sockets, frames, headers, dispatch, answers.

The native load generator (built by `make bench`) sends to a server in a separate process. The
server answers in the handler or, as the broker does after a commit, once per loop iteration.
Compare the CPU time per message, which hardly depends on other work on the machine.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import subprocess
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import uvloop

from cometmq.remoting import Call, ConstantExt, Reply, RequestCode
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.transport import Server, ServerSettings

LOADGEN: Final = Path(__file__).parents[1] / "build" / "loadgen"
REGION: Final = ConstantExt({"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})
SHAPES: Final = ((1, 1), (64, 1), (8, 32))


class Store:
    """Answers each send at once, or all sends of one loop iteration together."""

    def __init__(self, *, is_deferred: bool) -> None:
        self.count = 0
        self.staged: list[tuple[Call[Any], Reply]] = []
        self.send = self._stage if is_deferred else self._answer
        self.server: Server[Store] | None = None

    def _answer(self, _: "Store", call: Call[SendMessageV2]) -> Reply:
        self.count += 1
        header = SendMessageReply("7F0000010000810B00000000000023A5", 3, self.count)
        return Reply(header=header, ext=REGION)

    def _stage(self, _: "Store", call: Call[SendMessageV2]) -> None:
        if not self.staged:
            asyncio.get_running_loop().call_soon(self._commit)
        self.staged.append((call, self._answer(self, call)))

    def _commit(self) -> None:
        staged, self.staged = self.staged, []
        for call, reply in staged:
            call.answer(reply)
        assert self.server is not None
        self.server.writes.flush()


async def serve(pipe: Connection, *, is_deferred: bool) -> None:
    """Serve until the parent asks to stop; report CPU time and message count on request."""
    store = Store(is_deferred=is_deferred)
    server = Server(
        {RequestCode.SEND_MESSAGE_V2: store.send}, store, ServerSettings(), clock_ms=lambda: 0
    )
    store.server = server
    pipe.send(await server.listen("127.0.0.1", 0))
    gc.freeze()
    loop = asyncio.get_running_loop()
    while (await loop.run_in_executor(None, pipe.recv)) != "stop":
        pipe.send((time.process_time(), store.count))


def run_server(pipe: Connection, loop_name: str, is_deferred: bool) -> None:
    """Run `serve` as the entry point of the server process."""
    run = uvloop.run if loop_name == "uvloop" else asyncio.run
    run(serve(pipe, is_deferred=is_deferred))


def measure(loop_name: str, serialization: str, is_deferred: bool, seconds: float) -> None:
    """Print one line for each shape of load."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=run_server, args=(theirs, loop_name, is_deferred), daemon=True
    )
    process.start()
    port = ours.recv()
    for connections, in_flight in SHAPES:
        ours.send("figures")
        cpu, count = ours.recv()
        figures = load(port, connections, in_flight, serialization, seconds)
        ours.send("figures")
        cpu_after, count_after = ours.recv()
        print(
            f"{loop_name:8s}{serialization:9s}{'deferred' if is_deferred else 'at once':9s}"
            f"{connections:3d} x {in_flight:2d} {figures['messages_per_s']:9.0f} messages/s "
            f"{(cpu_after - cpu) / (count_after - count) * 1e6:6.2f} us CPU each"
        )
    ours.send("stop")
    process.join()


def load(
    port: int, connections: int, in_flight: int, serialization: str, seconds: float
) -> dict[str, Any]:
    command = [
        str(LOADGEN),
        "--mode",
        "send",
        "--port",
        str(port),
        "--connections",
        str(connections),
    ]
    command += ["--in-flight", str(in_flight), "--serialization", serialization]
    command += ["--seconds", str(seconds)]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    figures: dict[str, Any] = json.loads(output)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--loops", nargs="*", default=["uvloop", "asyncio"])
    parser.add_argument("--serializations", nargs="*", default=["json", "rocketmq"])
    options = parser.parse_args()
    for loop_name in options.loops:
        for serialization in options.serializations:
            for is_deferred in (False, True):
                measure(loop_name, serialization, is_deferred, options.seconds)


if __name__ == "__main__":
    main()
