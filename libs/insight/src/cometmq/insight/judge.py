# SPDX-License-Identifier: Apache-2.0
"""How is this consumer group doing? One set of states, limits and words for doctor, the console,
`lag --report`, alerts and Spark's reports (pure).

Callers state what they know of a group, or of one of its queues, as names in FACTS. RULES is a
table over these names: `judge` evaluates it in Python, and `sql` writes it as SQL for Spark.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

LATE_S: Final = 120
"""A group is late if its oldest unread message is older, or it commits nothing for longer."""
WINDOW_S: Final = 600
"""Reports, alerts and trends cover this time: a group that was in time once within it is well."""
RISK_S: Final = 43_200
"""Unread messages that are deleted sooner are at risk."""


class Status(StrEnum):
    """The states of a group, worst first."""

    LOST = "LOST"
    AT_RISK = "AT_RISK"
    SKIPS = "SKIPS"
    REWIND = "REWIND"
    STALLED = "STALLED"
    STOPPED = "STOPPED"
    NEVER_COMMITTED = "NEVER_COMMITTED"
    SLOW = "SLOW"
    DEAD_LETTERS = "DEAD_LETTERS"
    CATCHING_UP = "CATCHING_UP"
    UNKNOWN = "UNKNOWN"
    BROADCAST = "BROADCAST"
    OK = "OK"

    @property
    def word(self) -> str:
        """The state in a sentence."""
        return self.value.lower().replace("_", " ")

    @property
    def severity(self) -> str:
        """One of SEVERITIES."""
        return STATES[self].severity

    @property
    def is_bad(self) -> bool:
        """Whether somebody should look at the group."""
        return self.severity in BAD


class State(NamedTuple):
    """What a status means, and what to do."""

    severity: str
    meaning: str
    advice: str = ""


SEVERITIES: Final = ("ok", "info", "warn", "error", "critical")
"""Best to worst."""
BAD: Final = frozenset(SEVERITIES[2:])
STATES: Final[Mapping[Status, State]] = {
    Status.LOST: State(
        "critical",
        "messages were deleted before the group read them",
        "keep messages longer (fileReservedTime), or read faster; deleted messages are gone",
    ),
    Status.AT_RISK: State(
        "critical",
        "unread messages will be deleted soon, by age or by a filling disk",
        "start or add members; to gain time, raise fileReservedTime or give the disk space",
    ),
    Status.SKIPS: State(
        "critical", "offsets are beyond the end of the queues, so the next messages are skipped"
    ),
    Status.REWIND: State(
        "error",
        "the committed offset moved back and has not recovered",
        "ask who reset the offset; if nobody did, look for members with an old offset file",
    ),
    Status.STALLED: State(
        "error",
        "members are connected, but the offset is not moving and messages are waiting",
        "look at what its members do: a listener hangs, or one message fails for ever",
    ),
    Status.STOPPED: State(
        "error",
        "no member is connected, and messages are waiting",
        "start a member, or delete the group if it is no longer used",
    ),
    Status.NEVER_COMMITTED: State(
        "warn",
        "members are connected, but the group has never committed an offset",
        "check whether its listener ever returns, and whether it may commit offsets",
    ),
    Status.SLOW: State(
        "warn",
        "the group is late, and not catching up",
        "add members or threads, up to one member per queue, or make the listeners faster",
    ),
    Status.DEAD_LETTERS: State("warn", "messages failed for good and need a decision"),
    Status.CATCHING_UP: State("info", "the group is late, but catching up"),
    Status.UNKNOWN: State("info", "too little is known about the group"),
    Status.BROADCAST: State("info", "each member reads all messages and keeps its own offsets"),
    Status.OK: State("ok", "the group keeps up, or did within the window"),
}

FACTS: Final[Mapping[str, str]] = {
    "broadcasts": "the members keep their own offsets",
    "loses": "messages were deleted before the group read them",
    "at_risk": "unread messages are deleted within RISK_S unless something changes",
    "skips": "a committed offset is beyond the end of its queue",
    "known": "the brokers concerned have answered, often enough",
    "never_committed": "members are connected all the time, but committed no offset",
    "counted": "the number of unread messages is known",
    "late": "messages have waited for longer than LATE_S",
    "always_late": "they did so in the whole window",
    "rewound": "the offset moved back and is lower than it was",
    "online": "a member is connected",
    "stands": "the offset did not move in the window",
    "rests": "the offset does not move at the moment",
    "rested": "the offset did not move for half of the window",
    "drains": "the lag shrinks beyond doubt",
    "dead_letters": "messages failed for good and were not sent again",
}
RULES: Final[tuple[tuple[Status, str], ...]] = (
    (Status.BROADCAST, "broadcasts"),
    (Status.LOST, "loses"),
    (Status.AT_RISK, "at_risk"),
    (Status.SKIPS, "skips"),
    (Status.UNKNOWN, "!known"),
    (Status.NEVER_COMMITTED, "never_committed"),
    (Status.UNKNOWN, "!counted"),
    (Status.REWIND, "late rewound"),
    (Status.STOPPED, "always_late !online stands"),
    (Status.STALLED, "always_late online stands"),
    # A job without members, such as a Spark query, has finished if it rests for longer than its
    # batches can take; until then nothing is known.
    (Status.STOPPED, "always_late !online rested"),
    (Status.UNKNOWN, "always_late !online rests !drains"),
    (Status.SLOW, "always_late !drains"),
    (Status.CATCHING_UP, "always_late"),
    (Status.DEAD_LETTERS, "dead_letters"),
)
"""Status and the facts that it needs (! negates), in order of precedence; OK if none matches."""


def judge(facts: Collection[str]) -> Status:
    """Return the status of a group of which these facts are true, and all others are not."""
    return next((status for status, words in RULES if _holds(words, facts)), Status.OK)


def _holds(words: str, facts: Collection[str]) -> bool:
    return all((word.lstrip("!") in facts) is not word.startswith("!") for word in words.split())


def sql(columns: Mapping[str, str]) -> str:
    """Return RULES as an expression of SQL that yields the name of the status.

    `columns` has a condition for each known fact; NULL counts as false. Rules about other facts are
    left out.
    """
    cases = " ".join(
        f"WHEN {' AND '.join(_condition(word, columns) for word in words.split())} THEN '{status}'"
        for status, words in RULES
        if all(word.lstrip("!") in columns for word in words.split())
    )
    return f"CASE {cases} ELSE '{Status.OK}' END"


def _condition(word: str, columns: Mapping[str, str]) -> str:
    known = f"coalesce({columns[word.lstrip('!')]}, false)"
    return f"NOT {known}" if word.startswith("!") else known
