# SPDX-License-Identifier: Apache-2.0
"""Visit every reachable state breadth-first, so that counterexamples are as short as possible.

States are identified by 64-bit hashes. If two different states had the same hash, all states
reachable only from the second one would be missed; with ten million states, the probability of a
collision is about 1 in 400,000.
"""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from cometmq.testing.ha.invariants import Violated
from cometmq.testing.ha.model import Model, Step
from cometmq.testing.ha.world import World

Parents = dict[int, tuple[int, str] | None]


class Report(msgspec.Struct, frozen=True):
    """The findings of a check."""

    states: int
    depth: int
    is_complete: bool
    violation: str = ""
    steps: tuple[str, ...] = ()
    """The steps to the violation, or the steps that a walk took."""
    stuck: int = 0
    """States from which the goal can no longer be reached, if the check is complete."""

    def __str__(self) -> str:
        if self.violation:
            lines = [*self.steps, f"VIOLATION: {self.violation}"]
            return "\n".join(f"{number:3} {line}" for number, line in enumerate(lines, 1))
        end = "complete" if self.is_complete else "cut"
        return f"{self.states:,} states, depth {self.depth}, {end}"


def explore(
    model: Model, *, states_max: int, goal: Callable[[World], bool] | None = None
) -> Report:
    """Check every reachable state, up to a maximum number of states.

    If a `goal` is given, every visited state must be able to reach a state that fulfils it; use
    this only with bounds that can be explored completely.
    """
    first = model.first()
    parents: Parents = {hash(first): None}
    edges: list[tuple[int, int]] = []
    goals: set[int] = set()
    frontier = deque([(first, 0)])
    depth = 0
    while frontier and len(parents) < states_max:
        world, depth = frontier.popleft()
        here = hash(world)
        if goal is not None and goal(world):
            goals.add(here)
        try:
            for label, after in model.steps(world):
                there = hash(after)
                if goal is not None:
                    edges.append((here, there))
                if there not in parents:
                    parents[there] = (here, label)
                    frontier.append((after, depth + 1))
        except Violated as violated:
            steps = _path(parents, here)
            return Report(len(parents), depth + 1, False, str(violated), steps)
    is_complete = not frontier
    stuck = _stuck(parents, edges, goals) if goal is not None and is_complete else 0
    return Report(len(parents), depth, is_complete, stuck=stuck)


def wander(model: Model, choose: Callable[[Sequence[Step]], Step], *, steps_max: int) -> Report:
    """Follow one path of chosen steps, which can be longer than those of a breadth-first search."""
    world = model.first()
    labels: list[str] = []
    for _ in range(steps_max):
        try:
            steps = sorted(model.steps(world), key=lambda step: step[0])  # sets are unordered
        except Violated as violated:
            return Report(len(labels) + 1, len(labels) + 1, False, str(violated), tuple(labels))
        if not steps:
            break
        label, world = choose(steps)
        labels.append(label)
    return Report(len(labels) + 1, len(labels), is_complete=False, steps=tuple(labels))


def _path(parents: Parents, state: int) -> tuple[str, ...]:
    steps: list[str] = []
    while (parent := parents[state]) is not None:
        state, label = parent
        steps.append(label)
    return tuple(reversed(steps))


def _stuck(parents: Parents, edges: list[tuple[int, int]], goals: set[int]) -> int:
    """Return the number of states that have no path to a goal."""
    before: dict[int, list[int]] = {}
    for here, there in edges:
        before.setdefault(there, []).append(here)
    reached, pending = set(goals), list(goals)
    while pending:
        for state in before.get(pending.pop(), ()):
            if state not in reached:
                reached.add(state)
                pending.append(state)
    return len(parents) - len(reached)
