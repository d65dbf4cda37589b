# SPDX-License-Identifier: Apache-2.0
"""Churn and load against real processes on loopback: exit 1 if anything is found."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "crash"))

from churn import Churn
from reporting import Findings

PARTS: Final = ("churn",)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--churn-seconds", type=float, default=40, help="members come and go")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same moments")
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-load-") as temporary:
        folder = arguments.keep or Path(temporary)
        parts = arguments.parts or PARTS
        findings = [asyncio.run(_run(part, folder / part, arguments)) for part in parts]
    for one in findings:
        one.show()
    return int(any(one.count for one in findings))


async def _run(part: str, folder: Path, arguments: argparse.Namespace) -> Findings:
    seconds = arguments.churn_seconds
    return await Churn(
        folder,
        seconds=seconds,
        kill_seconds=seconds * 0.4 if seconds < 100 else seconds,
        seed=arguments.seed,
    ).run()


if __name__ == "__main__":
    sys.exit(main())
