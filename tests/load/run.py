# SPDX-License-Identifier: Apache-2.0
"""Runs churn and load against real processes on loopback; exits with 1 if a check fails."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.load.churn import Churn
from tests.load.cold_reads import ColdReadsRun
from tests.load.connections import ConnectionsRun
from tests.load.crowd import CrowdRun
from tests.load.deliveries import DeliveriesRun
from tests.load.fairness import FairnessRun
from tests.load.flood import FloodRun
from tests.load.idle import IdleRun
from tests.load.reporting import Findings

PARTS: Final = (
    *("churn", "cold-reads", "connections", "crowd", "deliveries", "fairness", "flood", "idle"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--churn-seconds", type=float, default=40, help="members come and go")
    parser.add_argument("--java", type=int, default=0, help="members that are Java clients")
    parser.add_argument("--window-seconds", type=float, default=4, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=2, help="of the comparison")
    parser.add_argument("--requests", type=int, default=140_000, help="of a flood")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same moments")
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]!r}")
    with tempfile.TemporaryDirectory(prefix="cometmq-load-") as temporary:
        folder = arguments.keep or Path(temporary)
        findings = []
        for part in arguments.parts or PARTS:
            place = folder / part
            place.mkdir(parents=True)
            findings.append(asyncio.run(_run(part, place, arguments)))
    for one in findings:
        one.show()
    return int(any(one.count for one in findings))


async def _run(part: str, folder: Path, arguments: argparse.Namespace) -> Findings:
    if part == "cold-reads":
        return await ColdReadsRun(folder).run()
    if part == "connections":
        return await ConnectionsRun(folder).run()
    if part == "crowd":
        return await CrowdRun(folder, seconds=arguments.window_seconds).run()
    if part == "deliveries":
        return await DeliveriesRun(folder, seconds=arguments.window_seconds).run()
    if part == "flood":
        return await FloodRun(folder, requests=arguments.requests, seed=arguments.seed).run()
    if part == "idle":
        return await IdleRun(folder).run()
    if part == "fairness":
        return await FairnessRun(
            folder, seconds=arguments.window_seconds, rounds=arguments.rounds
        ).run()
    seconds = arguments.churn_seconds
    return await Churn(
        folder,
        seconds=seconds,
        kill_seconds=seconds * 0.4 if seconds < 100 else seconds,
        java_count=arguments.java,
        seed=arguments.seed,
    ).run()


if __name__ == "__main__":
    sys.exit(main())
