# SPDX-License-Identifier: Apache-2.0
"""The process of the console of a suite.

`cometmq standalone --console` starts it when a browser connects for the first time, with the socket
that it has bound. The standard input is a pipe: first the order, and later its end, with which the
console stops.
"""

import asyncio
import os
import socket
import sys
from functools import partial
from typing import Final

import msgspec

from cometmq.remoting.errors import SettingsError
from cometmq.runtime import logging
from cometmq.runtime.process.garbage import no_collections
from cometmq.runtime.process.priority import yield_processors
from cometmq.runtime.program import program
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.service import EXIT_CANNOT_START, Stop, run
from cometmq.runtime.settings import load

_INPUT: Final = 0


class ConsoleOrder(msgspec.Struct, frozen=True):
    """The settings of the console's process.

    They are sent through a pipe, because they may contain a secret, and every user of the machine
    can read the arguments of a process.
    """

    listener: int
    """The descriptor of the listening socket."""
    settings: dict[str, str]
    log_level: str
    log_json: bool | None


def main() -> int:
    """Run the console until the order's pipe ends; return the status."""
    yield_processors()
    with os.fdopen(os.dup(_INPUT), "rb", buffering=0) as pipe:
        line = b""
        while not line.endswith(b"\n"):
            part = pipe.read(65_536)
            if not part:
                return EXIT_CANNOT_START
            line += part
    order = msgspec.json.decode(line, type=ConsoleOrder)
    logging.configure(json=order.log_json, level=order.log_level)
    try:
        with no_collections():  # a browser waits for these imports
            app_type = PROGRAMS["console"].app_type()
        settings = load(
            PROGRAMS["console"].settings_type(),
            prefix=PROGRAMS["console"].prefix,
            cli=order.settings,
        )
    except SettingsError as error:
        print(f"cometmq: {error}".replace("\n", "\ncometmq: "), file=sys.stderr)  # noqa: T201
        return EXIT_CANNOT_START
    log = logging.get("console")
    build = partial(app_type, settings, listener=socket.socket(fileno=order.listener))

    async def serve(stop: Stop) -> None:
        os.set_blocking(_INPUT, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(_INPUT, partial(_stop_at_end, stop))
        try:
            await program(build, log=log, http_port=-1)(stop)
        finally:
            loop.remove_reader(_INPUT)

    return run(serve, log=log)


def _stop_at_end(stop: Stop) -> None:
    try:
        if os.read(_INPUT, 1):
            return
    except BlockingIOError:
        return
    except OSError:  # the suite has gone, as at the end of the pipe
        pass
    asyncio.get_running_loop().remove_reader(_INPUT)
    stop.request("standalone")


if __name__ == "__main__":
    sys.exit(main())
