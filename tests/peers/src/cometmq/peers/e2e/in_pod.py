# SPDX-License-Identifier: Apache-2.0
"""Runs the load and its ledger inside a pod; reads commands and writes answers as lines of JSON."""

import asyncio
import json
import sys
from itertools import islice
from time import monotonic
from typing import Any

from cometmq.peers.ha.ledger import Ledger
from cometmq.peers.ha.load import Load, until_settled

POLL_S = 0.05
RECENT = 200


async def answer(load: Load, ledger: Ledger, command: dict[str, Any]) -> Any:
    """Return the answer to a command that does not end the load."""
    match command["do"]:
        case "now":
            return monotonic()
        case "settle":  # every send that began before `since` has an outcome
            await until_settled(ledger, command["since"])
            return monotonic()
        case "again":  # wait until a send that began after `since` is acknowledged
            return await first_after(ledger, command["since"])
        case "outage":
            found = ledger.outage(command["since"], command["until"])
            return None if found is None else found._asdict()
        case other:
            raise ValueError(f"unknown command {other}")


async def first_after(ledger: Ledger, since: float) -> float:
    """Wait until a send that began after `since` is acknowledged; return when it ended."""
    while True:
        # Search only the latest sends: searching all of them would slow down the load.
        for one in islice(reversed(ledger.acknowledged.values()), RECENT):
            if one.began >= since:
                return one.ended
        await asyncio.sleep(POLL_S)


async def main(namesrv: str) -> None:
    load = Load(namesrv)
    loop = asyncio.get_running_loop()
    async with load.running() as ledger:
        say("running")
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            if command["do"] == "finish":
                break
            say(await answer(load, ledger, command))
    errors = sorted({text for _, text in ledger.failed.values()})
    say({
        "acknowledged": len(ledger.acknowledged), "failed": len(ledger.failed),
        "repeated": ledger.repeated_count, "faults": ledger.faults()[:20], "errors": errors[:20],
    })  # fmt: skip


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
