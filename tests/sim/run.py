# SPDX-License-Identifier: Apache-2.0
"""Runs seeds on all cores and prints the history of the first one that fails.

python -m tests.sim.run --seeds 1000            # seeds 0 to 999
python -m tests.sim.run --seeds 5000:6000       # others
python -m tests.sim.run --seed 17               # one seed, with its history
"""

import argparse
import gc
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from tests.sim import mutations
from tests.sim.plan import draw
from tests.sim.world import World

CHUNK: int = 10
HISTORY_LINES = 400


class Found(NamedTuple):
    """The results of several seeds."""

    outcomes: Counter[str]
    failures: list[tuple[int, str]]
    events: int
    virtual_s: float


class Runs(NamedTuple):
    """Options for running seeds."""

    mutation: str = ""
    """The rule to drop, or empty."""
    is_intact: bool = False
    """Keep the rule, but use only the plans of its mutation."""


def run_seed(seed: int, runs: Runs) -> World:
    rule = mutations.ALL.get(runs.mutation)
    random = Random(f"plan {seed}")
    plan = draw(random) if rule is None else rule.plan(random)
    world = World(seed, plan)
    try:
        with mutations.applied(None if runs.is_intact else rule):
            world.run()
            world.close()
    finally:
        gc.collect(0)
    return world


def run_chunk(work: tuple[range, Runs]) -> Found:
    """Run some seeds in this process."""
    seeds, runs = work
    found = Found(Counter(), [], 0, 0.0)
    events, virtual_s = 0, 0.0
    for seed in seeds:
        world = run_seed(seed, runs)
        found.outcomes[f"failed: {world.violation}" if world.violation else world.outcome] += 1
        if world.violation:
            found.failures.append((seed, world.violation))
        events += world.scheduler.event_count
        virtual_s += world.scheduler.now
        del world
    gc.collect()
    return found._replace(events=events, virtual_s=virtual_s)


def prepare() -> None:
    """Set up a process that runs seeds: coroutines of killed processes never end by themselves."""
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)  # about coroutines that never started
    gc.collect()
    gc.freeze()
    gc.disable()


def run_all(seeds: range, runs: Runs, jobs: int) -> Iterator[Found]:
    """Run seeds on several cores, in chunks; yield the findings of each chunk."""
    chunks = [(seeds[start : start + CHUNK], runs) for start in range(0, len(seeds), CHUNK)]
    if jobs == 1 or len(chunks) == 1:
        prepare()
        yield from map(run_chunk, chunks)
        return
    with multiprocessing.get_context("fork").Pool(jobs, prepare) as pool:
        yield from pool.imap_unordered(run_chunk, chunks)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def show(seed: int, runs: Runs) -> bool:
    """Run a seed again and print its history; return whether it kept all promises."""
    world = run_seed(seed, runs)
    say("\n".join(world.history()[-HISTORY_LINES:]))
    say(f"\nseed {seed}: {world.violation or world.outcome}\n{world.plan}")
    return not world.violation


def parse_seeds(text: str) -> range:
    first, colon, last = text.rpartition(":")
    return range(int(first), int(last)) if colon else range(int(last))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=range(100), help="N, or FIRST:END")
    parser.add_argument("--seed", type=int, help="run this seed and print its history")
    parser.add_argument("--seconds", type=float, default=0, help="start no more seeds after this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutation", default="", choices=["", *mutations.ALL], metavar="RULE")
    parser.add_argument(
        "--intact", action="store_true", help="keep the rule, and use only the plans of --mutation"
    )
    parser.add_argument("--quiet", action="store_true", help="print no history of a failure")
    options = parser.parse_args()
    runs = Runs(options.mutation, options.intact)
    if options.seed is not None:
        prepare()
        return 0 if show(options.seed, runs) else 1
    began, total, failures = time.monotonic(), 0, []
    outcomes: Counter[str] = Counter()
    events, virtual_s = 0, 0.0
    for found in run_all(options.seeds, runs, options.jobs):
        total += found.outcomes.total()
        outcomes += found.outcomes
        failures += found.failures
        events += found.events
        virtual_s += found.virtual_s
        if failures or (options.seconds and time.monotonic() - began > options.seconds):
            break
    elapsed_s = time.monotonic() - began
    say(
        f"{total} seeds in {elapsed_s:.1f} s ({options.jobs} processes), {events} events,"
        f" {virtual_s:.0f} s of simulated time"
    )
    for outcome, count in outcomes.most_common():
        say(f"{count:8} {outcome}")
    for seed, violation in sorted(failures)[:1]:
        mutation = f" --mutation {options.mutation!r}" if options.mutation else ""
        mutation += " --intact" if options.intact else ""
        if not options.quiet:
            show(seed, runs)
        say(f"seed {seed} failed: {violation}")
        say(f"to repeat it: .venv/bin/python -m tests.sim.run --seed {seed}{mutation}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
