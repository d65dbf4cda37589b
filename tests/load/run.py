# SPDX-License-Identifier: Apache-2.0
"""Runs churn and load against real processes on loopback; exits with 1 if a check fails."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
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

RUNS: Final[dict[str, Callable[[Path, argparse.Namespace], Coroutine[None, None, Findings]]]] = {
    "churn": lambda folder, given: Churn(
        folder,
        seconds=given.churn_seconds,
        kill_seconds=given.churn_seconds * (0.4 if given.churn_seconds < 100 else 1),
        java_count=given.java,
        seed=given.seed,
    ).run(),
    "cold-reads": lambda folder, _: ColdReadsRun(folder).run(),
    "connections": lambda folder, _: ConnectionsRun(folder).run(),
    "crowd": lambda folder, given: CrowdRun(folder, seconds=given.window_seconds).run(),
    "deliveries": lambda folder, given: DeliveriesRun(folder, seconds=given.window_seconds).run(),
    "fairness": lambda folder, given: FairnessRun(
        folder, seconds=given.window_seconds, rounds=given.rounds
    ).run(),
    "flood": lambda folder, given: FloodRun(folder, requests=given.requests, seed=given.seed).run(),
    "idle": lambda folder, _: IdleRun(folder).run(),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--churn-seconds", type=float, default=40, help="members come and go")
    parser.add_argument("--java", type=int, default=0, help="members that are Java clients")
    parser.add_argument("--window-seconds", type=float, default=4, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=2, help="of the comparison")
    parser.add_argument("--requests", type=int, default=140_000, help="of a flood")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same moments")
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.parts) - RUNS.keys()):
        parser.error(f"there is no part {unknown[0]!r}")
    with tempfile.TemporaryDirectory(prefix="cometmq-load-") as temporary:
        folder = arguments.keep or Path(temporary)
        findings = []
        for part in arguments.parts or RUNS:
            place = folder / part
            place.mkdir(parents=True)
            findings.append(asyncio.run(RUNS[part](place, arguments)))
    for one in findings:
        one.show()
    return int(any(one.count for one in findings))


if __name__ == "__main__":
    sys.exit(main())
