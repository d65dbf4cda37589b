# SPDX-License-Identifier: Apache-2.0
"""Finds what is wrong in a cluster, since when, and what to do about it.

The rules (`cometmq.insight.rules`) are pure functions of a snapshot and of the history of earlier
ones. `cometmq doctor`, `cometmq report` and the console show the findings.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from cometmq.insight.finding import NOW, Finding, Severity
from cometmq.insight.history import History
from cometmq.insight.model import Snapshot
from cometmq.insight.rules import brokers, clients, consuming

__all__ = ["RULES", "Finding", "Findings", "Severity", "findings"]

Rule = Callable[[Snapshot, History], Iterable[Finding]]

RULES: Final[tuple[Rule, ...]] = (
    brokers.unregistered,
    brokers.unreachable,
    brokers.masterless,
    brokers.topics_unrouted,
    brokers.faulty,
    brokers.disk_fills,
    brokers.releases_differ,
    brokers.certificates_expiring,
    consuming.lost,
    consuming.judged,
    consuming.skips,
    consuming.stranded,
    consuming.dead_letters,
    consuming.disagreeing,
    clients.half_messages,
    clients.refused,
    clients.habits,
    clients.unread_topics,
    clients.closed_topics,
)
_PREFIX: Final = "finding:"


def findings(snapshot: Snapshot, history: History | None = None) -> list[Finding]:
    """Return a snapshot's findings, worst first; without a history, all of them began now or
    earlier.

    Findings of one severity are in the order of the rules, which does not depend on the history, so
    that all views show the same order.
    """
    kept = History() if history is None else history
    found: dict[str, Finding] = {}
    places: dict[str, int] = {}
    for place, rule in enumerate(RULES):
        for it in rule(snapshot, kept):
            key = f"{_PREFIX}{it.key}"
            if it.since is NOW:
                it = msgspec.structs.replace(it, since=kept.since(key, snapshot.taken_ms))  # noqa: PLW2901  # the same problem
            found[key] = it
            places[it.rule] = place
    kept.keep_only(found, _PREFIX)
    return sorted(found.values(), key=lambda it: (it.severity.rank, places[it.rule], it.subject))


class Findings:
    """Computes the findings of the newest snapshot once, for all views that show it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._judged: tuple[Snapshot, list[Finding]] | None = None

    def of(self, snapshot: Snapshot) -> list[Finding]:
        """Return the findings of a snapshot.

        Call this with each snapshot, whether it is shown or not: a condition begins when it is
        first found.
        """
        if self._judged is None or self._judged[0] is not snapshot:
            self._judged = snapshot, findings(snapshot, self._history)
        return self._judged[1]
