# SPDX-License-Identifier: Apache-2.0
"""Passes mutated inputs to every decoder, in several processes."""

import hashlib
import multiprocessing
import resource
import sys
import time
import traceback
from random import Random
from typing import Final, NamedTuple

from tests.fuzz.cost import Cost, Worst
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import ALLOWED, TARGETS, seeds

from cometmq.peers.paths import FUZZ_FAILURES, GOLDEN

SLOW_S: Final = 0.2
"""CPU time that no input may take, measured at least SLOW_ATTEMPTS times."""
SLOW_ATTEMPTS: Final = 3
GROWTH_KIB_MAX: Final = 200 * 1024
_FAILURES_MAX: Final = 5


class Findings(NamedTuple):
    inputs: int
    refused: int
    growth_kib: int
    failures: list[str]
    costs: list[Cost]


def fuzz_decoders(*, inputs: int, seed: int, processes: int) -> bool:
    """Fuzz the decoders and print the result; return True if nothing was found."""
    started = time.monotonic()
    shares = [inputs // processes + (index < inputs % processes) for index in range(processes)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        results = pool.starmap(_fuzz, [(share, seed, i) for i, share in enumerate(shares)])
    elapsed_s = time.monotonic() - started
    total = sum(result.inputs for result in results)
    refused = sum(result.refused for result in results)
    growth_kib = max(result.growth_kib for result in results)
    say(
        f"decoders: {total} inputs, {refused} refused, {total - refused} accepted, "
        f"{total / elapsed_s:.0f} inputs/s, memory grew by {growth_kib // 1024} MiB, seed {seed}"
    )
    worst = Worst()
    for cost in (cost for result in results for cost in result.costs):
        worst.note(cost)
    say(f"decoders: slowest inputs: {worst}")
    failures = [failure for result in results for failure in result.failures]
    for failure in failures:
        say(failure)
    if growth_kib > GROWTH_KIB_MAX:
        say(f"memory grew by more than {GROWTH_KIB_MAX // 1024} MiB")
    return not failures and growth_kib <= GROWTH_KIB_MAX


def say(line: str) -> None:
    """Print a line and flush, so that the progress of long runs is visible."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _fuzz(inputs: int, seed: int, process: int) -> Findings:
    random = Random(f"{seed}:{process}")
    corpus = seeds(GOLDEN)
    names = list(TARGETS)
    refused = 0
    failures: list[str] = []
    worst = Worst()
    for name in names:  # imports and caches take time once
        _refuses(name, corpus[name][0], Worst())
    before_kib = 0
    for number in range(inputs):
        if number == min(inputs // 10, 20_000):  # caches are full from here on
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        name = names[number % len(names)]
        data = mutated(random, corpus[name])
        try:
            refused += _refuses(name, data, worst)
        except Exception:  # noqa: BLE001  # whatever comes out is the finding
            failures.append(_save(name, data))
            if len(failures) >= _FAILURES_MAX:
                return Findings(number + 1, refused, 0, failures, worst.costs())
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Findings(inputs, refused, after_kib - before_kib, failures, worst.costs())


def _refuses(name: str, data: bytes, worst: Worst) -> bool:
    """Return whether the target refuses the input; any other exception propagates."""
    elapsed_s: list[float] = []
    is_refused = False
    while True:
        started_s = time.thread_time()
        try:
            TARGETS[name](data)
        except ALLOWED:
            is_refused = True
        elapsed_s.append(time.thread_time() - started_s)
        if min(elapsed_s) <= SLOW_S:
            break
        if len(elapsed_s) == SLOW_ATTEMPTS:
            raise TimeoutError(f"{name} takes more than {SLOW_S} s")
    worst.note(Cost.of(name, min(elapsed_s), len(data)))
    return is_refused


def _save(name: str, data: bytes) -> str:
    FUZZ_FAILURES.mkdir(parents=True, exist_ok=True)
    path = FUZZ_FAILURES / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return f"{traceback.format_exc()}FOUND: tests/fuzz/targets.py {name} {path}"
