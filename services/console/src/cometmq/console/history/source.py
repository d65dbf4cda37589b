# SPDX-License-Identifier: Apache-2.0
"""The interface of a history, and the keys of its figures."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Protocol

from cometmq.insight.model import BrokerState, Snapshot, known

Points = list[tuple[int, float | None]]
"""Times in ms and values; None interrupts a line."""


class History(Protocol):
    """The figures of the last days, from a file or from Prometheus."""

    async def lines(self, keys: Sequence[str], begin_ms: int, end_ms: int) -> Mapping[str, Points]:
        """Return the points of each key; a key without any has an empty list."""
        ...


def group_key(group: str, figure: str) -> str:
    """Return the key of a group's figure: `lag` (messages), `behind` (seconds), or `out` (messages
    per second).
    """
    return f"group:{figure}:{group}"


def topic_key(topic: str, figure: str) -> str:
    """Return the key of a topic's figure: `in` (messages per second)."""
    return f"topic:{figure}:{topic}"


def broker_key(name: str, broker_id: int, figure: str) -> str:
    """Return the key of a copy's figure: `in` or `out` (messages per second), `disk` (ratio used),
    or `behind` (bytes).
    """
    return f"broker:{figure}:{name}:{broker_id}"


def figures_of(snapshot: Snapshot) -> dict[str, float]:
    """Return the figures of a snapshot that the history keeps; unknown ones are missing."""
    found: dict[str, object] = {}
    for broker in snapshot.brokers:
        state = broker.state
        if not isinstance(state, BrokerState):
            continue
        own = {
            "in": state.figures.incoming.tps,
            "out": state.figures.outgoing.tps,
            "disk": getattr(state.disk, "used_ratio", None),
            "behind": state.behind_bytes,
        }
        found |= {broker_key(broker.name, broker.broker_id, key): it for key, it in own.items()}
    for topic in known(snapshot.topics):
        found[topic_key(topic.name, "in")] = topic.in_per_s
    for group in known(snapshot.groups):
        found[group_key(group.name, "lag")] = group.lag
        found[group_key(group.name, "behind")] = group.behind_s
        found[group_key(group.name, "out")] = group.out_per_s
    return {
        key: float(it) for key, it in found.items() if isinstance(it, int | float) and isfinite(it)
    }
