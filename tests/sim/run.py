# SPDX-License-Identifier: Apache-2.0
"""Runs seeds on all cores and prints the history of the first one that fails.

python -m tests.sim.run --seeds 1000            # seeds 0 to 999
python -m tests.sim.run --seeds 5000:6000       # others
python -m tests.sim.run --seed 17               # one seed, with its history

The results are counted in the order of the seeds. A run that ends early, because of --seconds,
Ctrl-C or a failure, prints the command that runs the remaining seeds.
"""

import argparse
import contextlib
import gc
import hashlib
import multiprocessing
import os
import signal
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
PROGRESS_S = 10.0


class Found(NamedTuple):
    """The results of several consecutive seeds."""

    seeds: range
    outcomes: Counter[str]
    failures: list[tuple[int, str]]
    digests: list[str]
    """A digest of each run, if digests are wanted."""
    events: int
    virtual_s: float


class Runs(NamedTuple):
    """Options for running seeds."""

    mutation: str = ""
    """The rule to drop, or empty."""
    is_intact: bool = False
    """Keep the rule, but use only the plans of its mutation."""
    has_digests: bool = False
    keeps_going: bool = False
    """Whether seeds are run after one that failed."""

    @property
    def arguments(self) -> str:
        """The arguments that select the same runs."""
        mutation = f" --mutation {self.mutation!r}" if self.mutation else ""
        return mutation + (" --intact" if self.is_intact else "")


def run_seed(seed: int, runs: Runs) -> World:
    rule = mutations.ALL.get(runs.mutation)
    random = Random(f"plan {seed}")
    plan = draw(random) if rule is None else rule.plan(random)
    world = World(seed, plan)
    with mutations.applied(None if runs.is_intact else rule):
        world.run()
        world.close()
    return world


def run_chunk(work: tuple[range, Runs]) -> Found:
    """Run some seeds in this process: all, or those up to the first that fails."""
    seeds, runs = work
    found = Found(seeds, Counter(), [], [], 0, 0.0)
    events, virtual_s = 0, 0.0
    for seed in seeds:
        world = run_seed(seed, runs)
        found.outcomes[f"failed: {world.violation}" if world.violation else world.outcome] += 1
        if world.violation:
            found.failures.append((seed, world.violation))
        if runs.has_digests:
            found.digests.append(world.digest())
        events += world.scheduler.event_count
        virtual_s += world.scheduler.now
        del world
        gc.collect()
        if found.failures and not runs.keeps_going:
            found = found._replace(seeds=range(seeds.start, seed + 1))
            break
    return found._replace(events=events, virtual_s=virtual_s)


def prepare() -> None:
    """Set up a process that runs seeds: coroutines of killed processes never end by themselves."""
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)  # about coroutines that never started
    gc.collect()
    gc.freeze()
    gc.disable()


def prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the process that waits for results
    prepare()


def run_all(seeds: range, runs: Runs, jobs: int) -> Iterator[Found]:
    """Run seeds on several cores, in chunks; yield the findings of each chunk, in order."""
    chunks = [(seeds[start : start + CHUNK], runs) for start in range(0, len(seeds), CHUNK)]
    if jobs == 1 or len(chunks) == 1:
        prepare()
        yield from map(run_chunk, chunks)
        return
    with multiprocessing.get_context("fork").Pool(jobs, prepare_worker) as pool:
        yield from pool.imap(run_chunk, chunks)


class Tally:
    """The results of all seeds so far."""

    def __init__(self, seeds: range) -> None:
        self.seeds = seeds
        self.left = seeds
        self.failures: list[tuple[int, str]] = []
        self._outcomes: Counter[str] = Counter()
        self._events, self._virtual_s = 0, 0.0
        self._digest = hashlib.sha256()
        self._began_s = self._said_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def add(self, found: Found) -> None:
        self.left = range(found.seeds.stop, self.seeds.stop)
        self.failures += found.failures
        self._outcomes += found.outcomes
        self._events += found.events
        self._virtual_s += found.virtual_s
        self._digest.update("".join(found.digests).encode())
        for seed, violation in found.failures:
            say(f"seed {seed} failed: {violation}")
        if time.monotonic() - self._said_s >= PROGRESS_S:
            self._said_s = time.monotonic()
            self.say_progress()

    def say_progress(self) -> None:
        done = range(self.seeds.start, self.left.start)
        say(
            f"seeds {done.start}:{done.stop} of {self.seeds.start}:{self.seeds.stop}"
            f" have run, {len(done) / self.elapsed_s:.1f} a second, {len(self.failures)} failed"
        )

    def say_results(self, runs: Runs, jobs: int) -> None:
        say(
            f"{self._outcomes.total()} seeds in {self.elapsed_s:.1f} s ({jobs} processes),"
            f" {self._events} events, {self._virtual_s:.0f} s of simulated time"
        )
        for outcome, count in self._outcomes.most_common():
            say(f"{count:8} {outcome}")
        if runs.has_digests:
            say(f"digest of all runs: {self._digest.hexdigest()}")
        if self.left:
            rest = f"{self.left.start}:{self.left.stop}"
            say(f"to continue: {COMMAND} --seeds {rest}{runs.arguments}")


COMMAND = ".venv/bin/python -m tests.sim.run"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show(seed: int, runs: Runs) -> bool:
    """Run a seed again and print its history; return whether it kept all promises."""
    world = run_seed(seed, runs)
    say("\n".join(world.history()[-HISTORY_LINES:]))
    say(f"\nseed {seed}: {world.violation or world.outcome}\n{world.plan}")
    return not world.violation


def parse_seeds(text: str) -> range:
    first, colon, last = text.rpartition(":")
    return range(int(first), int(last)) if colon else range(int(last))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, default=range(100), help="N, or FIRST:END")
    parser.add_argument("--seed", type=int, help="run this seed and print its history")
    parser.add_argument("--seconds", type=float, default=0, help="start no more seeds after this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutation", default="", choices=["", *mutations.ALL], metavar="RULE")
    parser.add_argument(
        "--intact", action="store_true", help="keep the rule, and use only the plans of --mutation"
    )
    parser.add_argument("--keep-going", action="store_true", help="continue after a failure")
    parser.add_argument("--digest", action="store_true", help="print a digest of all runs")
    parser.add_argument("--quiet", action="store_true", help="print no history of a failure")
    return parser.parse_args()


def run_many(options: argparse.Namespace, runs: Runs) -> Tally:
    """Run the chosen seeds until the first failure or until the time is up."""
    tally = Tally(options.seeds)
    with contextlib.suppress(KeyboardInterrupt):
        for found in run_all(options.seeds, runs, options.jobs):
            tally.add(found)
            if tally.failures and not options.keep_going:
                break
            if options.seconds and tally.elapsed_s > options.seconds:
                break
    return tally


def main() -> int:
    options = parse_options()
    runs = Runs(options.mutation, options.intact, options.digest, options.keep_going)
    if options.seed is not None:
        prepare()
        return 0 if show(options.seed, runs) else 1
    tally = run_many(options, runs)
    tally.say_results(runs, options.jobs)
    for seed, violation in sorted(tally.failures)[:1]:
        if not options.quiet:
            show(seed, runs)
        say(f"seed {seed} failed: {violation}")
        say(f"to repeat it: {COMMAND} --seed {seed}{runs.arguments}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
