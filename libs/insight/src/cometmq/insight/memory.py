# SPDX-License-Identifier: Apache-2.0
"""What a broker uses its memory for, from its answer to GET_BROKER_RUNTIME_INFO (pure)."""

from collections.abc import Mapping, Sequence
from typing import Final

from cometmq.insight.model import Memory, MemoryPart, Unknown
from cometmq.remoting.integers import whole

KEY: Final = "memory"
NOT_TOLD: Final = Unknown("this broker does not report its memory")
_TITLES: Final = {
    "program": "programs and libraries",
    "pullCache": "records kept for pulls",
    "unread": "answers that clients have not read",
}
REST: Final = "tables, connections and interpreter"


def memory_of(facts: Mapping[str, str]) -> Memory | Unknown:
    """Return the memory of a broker and its parts, in bytes.

    The sum of the parts never exceeds the whole: a part that does not fit beside those before it is
    left out.
    """
    told = _told(facts.get(KEY, ""))
    resident = told.get("resident")
    if not resident:
        return NOT_TOLD
    parts: list[MemoryPart] = []
    rest = resident
    for name, title in _TITLES.items():
        size = told.get(name, 0)
        if 0 < size <= rest:
            parts.append(MemoryPart(title, size))
            rest -= size
    parts.append(MemoryPart(REST, rest))
    return Memory(resident, _sorted(parts), told.get("peak"), told.get("limit"))


def _sorted(parts: Sequence[MemoryPart]) -> list[MemoryPart]:
    return sorted(parts, key=lambda it: -it.size)


def _told(text: str) -> dict[str, int]:
    pairs = (word.partition("=") for word in text[:1_000].split(","))
    return {name: number for name, _, size in pairs if (number := whole(size)) is not None}
