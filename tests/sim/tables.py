# SPDX-License-Identifier: Apache-2.0
"""The tables of a simulated broker; its journal and its feed to followers are the real ones."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec


class TableFile(NamedTuple):
    """The file of a table; it is never saved, so the journal keeps every change."""

    path: Path
    loaded_digest: str = "never saved"
    is_restored: bool = False


class SimTable:
    """A map with the interface `cometmq.broker.copies.tables.feed.Replicated`."""

    def __init__(self, name: str) -> None:
        self.file = TableFile(Path(name))
        self.is_dirty = False
        self.values: dict[str, int | None] = {}
        self.noted: Callable[[], None] | None = None
        self._noted: set[str] = set()

    def put(self, key: str, value: int) -> None:
        self._set({key: value})

    def encode_for_file(self) -> bytes:
        return msgspec.json.encode(self.values)

    def noted_changes(self) -> list[bytes]:
        return [msgspec.json.encode({key: self.values.get(key) for key in sorted(self._noted)})]

    def forget_noted(self) -> None:
        self._noted.clear()

    def apply_changes(self, data: msgspec.Raw) -> None:
        self._update(msgspec.json.decode(data))

    def whole(self) -> Iterator[bytes]:
        yield msgspec.json.encode(self.values)

    def become(self, pieces: Sequence[msgspec.Raw]) -> None:
        content: dict[str, int | None] = {}
        for piece in pieces:
            content.update(msgspec.json.decode(piece))
        changes: dict[str, int | None] = dict.fromkeys(self.values.keys() - content.keys())
        known = self.values
        changes.update({key: value for key, value in content.items() if known.get(key) != value})
        if changes:
            self._set(changes)

    def _set(self, changes: dict[str, Any]) -> None:
        self._update(changes)
        is_first = not self._noted
        self._noted.update(changes)
        if is_first and self.noted is not None:
            self.noted()

    def _update(self, changes: dict[str, Any]) -> None:
        for key, value in changes.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value


class SimPositions(SimTable):
    """The table of delay offsets."""

    def restart(self) -> None:
        """Do nothing: no message is delayed here."""


class SimDelays:
    """The methods of delayed delivery that role changes call; no message is delayed here."""

    def __init__(self, positions: SimPositions) -> None:
        self.positions = positions

    def fit(self) -> None:
        """Do nothing."""

    def expect_copies(self, now_ms: int) -> None:
        """Do nothing."""
