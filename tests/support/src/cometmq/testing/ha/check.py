# SPDX-License-Identifier: Apache-2.0
"""The long form of the exhaustive check: `make ha-model`, or `python -m cometmq.testing.ha.check`.

Each run has its own bounds, because the state space grows with the product of its faults. Runs that
cannot be explored completely stop after a fixed number of states and report that. Random walks then
explore longer paths, with larger bounds.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Final

from cometmq.testing.ha.explore import Report, explore, wander
from cometmq.testing.ha.model import Model
from cometmq.testing.ha.world import Bounds, World

SHORT: Final = (
    Bounds(in_sync=2, messages=1, epochs=2, writes=2, lost=1),
    Bounds(in_sync=1, messages=1, epochs=2, writes=2, lost=1, crashes=1),
    Bounds(in_sync=1, messages=1, epochs=2, writes=1, lost=1, host_crashes=1),
    Bounds(in_sync=1, messages=0, epochs=2, writes=1, host_crashes=1, tables=1),
    Bounds(in_sync=2, messages=1, epochs=3, hand_overs=1, crashes=1),
    Bounds(in_sync=2, min_in_sync=2, messages=1, epochs=2, writes=2, lost=1),
    Bounds(in_sync=1, messages=1, epochs=3, writes=1, lost=1, lapses=1),
    Bounds(in_sync=2, messages=1, epochs=3, writes=1, deletions=1),
    Bounds(nodes=3, in_sync=3, messages=1, epochs=2, writes=1),
)
"""Bounds that are explored completely within seconds, as part of `make test`."""

LONG: Final = (
    Bounds(in_sync=2, messages=2, epochs=3, writes=2, lost=1, crashes=1, host_crashes=1),
    Bounds(in_sync=1, messages=2, epochs=3, writes=2, lost=2, crashes=1, host_crashes=1),
    Bounds(in_sync=2, messages=2, epochs=3, writes=2, lost=2, hand_overs=1),
    Bounds(in_sync=1, messages=1, epochs=3, writes=2, lost=1, crashes=1, tables=1, hand_overs=1),
    Bounds(in_sync=2, messages=1, epochs=3, writes=2, lost=1, host_crashes=1, tables=1),
    Bounds(in_sync=2, min_in_sync=2, messages=2, epochs=3, writes=2, lost=1, crashes=1),
    Bounds(in_sync=2, messages=1, epochs=4, writes=2, lost=1, deletions=1, crashes=1),
    Bounds(nodes=3, in_sync=3, messages=1, epochs=3, writes=2, lost=1, crashes=1),
    Bounds(nodes=3, in_sync=2, messages=1, epochs=3, writes=2, host_crashes=1, hand_overs=1),
    Bounds(nodes=3, in_sync=3, messages=1, epochs=4, writes=1, lost=1, deletions=1),
)

CALM: Final = (
    Bounds(in_sync=2, messages=2, epochs=3, writes=3),
    Bounds(nodes=3, in_sync=3, messages=1, epochs=2, writes=1),
)
"""Bounds without faults: from every state, a master can still confirm its whole log."""


STEPS_OF_A_WALK: Final = 150


def random_bounds(random: Random) -> Bounds:
    """Return random bounds, with up to four copies, that are too large to explore fully."""
    nodes = random.choice([2, 3, 3, 4])
    return Bounds(
        nodes=nodes,
        in_sync=random.randint(1, nodes),
        min_in_sync=random.choice([1, 1, 2]),
        epochs=random.choice([4, 7, 12]),
        messages=4,
        tables=random.choice([0, 0, 2]),
        writes=random.choice([2, 6]),
        lost=random.choice([1, 3]),
        crashes=random.choice([0, 2]),
        host_crashes=random.choice([0, 1, 2]),
        lapses=random.choice([0, 1]),
        hand_overs=random.choice([0, 2]),
        deletions=random.choice([0, 0, 1]),
    )


def walk(seed: int) -> tuple[Bounds, Report]:
    """Take one random path within random bounds; the same seed always gives the same path."""
    random = Random(seed)
    bounds = random_bounds(random)
    return bounds, wander(Model(bounds), random.choice, steps_max=STEPS_OF_A_WALK)


def is_calm(world: World) -> bool:
    """Return whether a master has confirmed its whole log and made it visible to consumers."""
    return any(
        node.leading is not None
        and node.leading.start <= node.leading.confirmed == node.leading.end
        and world.cell is not None
        and node.leading.epoch == world.cell.record.epoch
        for node in world.nodes
    )


def describe(bounds: Bounds) -> str:
    """Return the bounds that differ from the defaults."""
    plain = Bounds()
    return ", ".join(
        f"{name}={getattr(bounds, name)}"
        for name in bounds.__struct_fields__
        if getattr(bounds, name) != getattr(plain, name)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all bounds and print a line for each; return 1 if any run fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=1_000_000, help="cut each run after so many")
    parser.add_argument("--walks", type=int, default=20_000, help="random walks after that")
    parser.add_argument("--seed", type=int, default=1, help="of the first walk")
    options = parser.parse_args(arguments)
    is_broken = False
    for bounds in (*SHORT, *LONG, *CALM):
        begun = time.monotonic()
        goal = is_calm if bounds in CALM else None
        report = explore(Model(bounds), states_max=options.states, goal=goal)
        is_broken |= is_bad(report)
        seconds = time.monotonic() - begun
        sys.stdout.write(f"{describe(bounds)}\n    {report}, {seconds:.0f} s\n")
        sys.stdout.flush()
    return int(walk_all(range(options.seed, options.seed + options.walks)) or is_broken)


def walk_all(seeds: range) -> bool:
    """Take a walk for each seed and print those that broke a promise; return whether any did."""
    steps, is_broken = 0, False
    for seed in seeds:
        bounds, report = walk(seed)
        steps += report.states
        if is_bad(report):
            is_broken = True
            sys.stdout.write(f"seed {seed}: {describe(bounds)}\n{report}\n")
    sys.stdout.write(f"{len(seeds):,} random walks, {steps:,} steps\n")
    return is_broken


def is_bad(report: Report) -> bool:
    """Return whether a run found a broken promise, or states from which no goal can be reached."""
    return bool(report.violation) or report.stuck > 0


if __name__ == "__main__":
    sys.exit(main())
