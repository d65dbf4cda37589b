# SPDX-License-Identifier: Apache-2.0
"""The base of the topic and group tables: configurations by name, with a version and a file.

Invariant: each change gives the table a new version, marks it for saving, and is noted for the
journal.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from cometmq.broker.tables.persistence import clean_after
from cometmq.remoting.bodies.dialect import decode_file, encode_json
from cometmq.remoting.bodies.kept import kept_members
from cometmq.remoting.bodies.large import encode_with_table
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.log import Log
from cometmq.runtime.incremental import Steps, finish
from cometmq.store.json_config import JsonTable


class Versioned(Protocol):
    """The content of a table's file."""

    data_version: DataVersion


FileT = TypeVar("FileT", bound=Versioned)
ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)

PIECE_COUNT_MAX: Final = 4096


class ConfigChanges(msgspec.Struct, Generic[ConfigT], rename="camel"):
    """One piece of a table's changes, as the journal stores it."""

    data_version: DataVersion
    changed: dict[str, ConfigT] = {}
    removed: list[str] = []
    kept: dict[str, Any] | UnsetType = UNSET
    """The members of the table's file that no struct knows; unset if there are none."""


class VersionedTable(ABC, Generic[FileT, ConfigT]):
    def __init__(
        self,
        file: JsonTable[FileT] | None,
        entries: Callable[[FileT], Mapping[str, ConfigT]],
        config: type[ConfigT],
        *,
        clock_ms: Callable[[], int],
        changed: Callable[[], None],
        log: Log,
    ) -> None:
        """Load the file; `entries` extracts the configurations, of the type `config`, from it."""
        loaded = file.load() if file is not None else None
        self.file = file
        self.table: dict[str, ConfigT] = {} if loaded is None else dict(entries(loaded))
        self.version = DataVersion(timestamp=clock_ms()) if loaded is None else loaded.data_version
        self.kept: dict[str, Any] = {} if loaded is None else kept_members(loaded)
        config = next(map(type, self.table.values()), config)  # perhaps with unknown members
        self.is_dirty = False
        self.noted: Callable[[], None] | None = None
        self._noted: set[str] = set()
        self._is_noted = False
        self._changes_type = ConfigChanges[config]  # type: ignore[valid-type]  # found at run time
        self._clock_ms = clock_ms
        self._changed = changed
        self._log = log

    def get(self, name: str) -> ConfigT | None:
        return self.table.get(name)

    @abstractmethod
    def without_entries(self) -> msgspec.Struct:
        """Return the version in its saved form, with an empty table."""

    def encode(self) -> Steps[bytes]:
        """Return the content of the file, which is also the body of the answer to slaves."""
        whole = yield from encode_with_table(self.without_entries(), self.table)
        if not self.kept:
            return whole
        return b"%b,%b" % (encode_json(self.kept)[:-1], whole[1:])  # slaves expect the table last

    def encode_for_file(self) -> Steps[bytes]:
        """Clear `is_dirty` and return the content of the file."""
        return clean_after(self, self.encode())

    def noted_changes(self) -> list[bytes]:
        """Return the version and the noted configurations, in pieces of bounded size."""
        return list(self._pieces(list(self._noted)))

    def whole(self) -> Iterator[bytes]:
        """Yield the version and all configurations, in pieces in the format of `noted_changes`."""
        return self._pieces(list(self.table))

    def _pieces(self, names: Sequence[str]) -> Iterator[bytes]:
        for start in range(0, max(1, len(names)), PIECE_COUNT_MAX):
            yield self._piece(names[start : start + PIECE_COUNT_MAX])

    def _piece(self, names: Sequence[str]) -> bytes:
        changed = {name: self.table[name] for name in names if name in self.table}
        removed = [name for name in names if name not in self.table]
        return encode_json(ConfigChanges(self.version, changed, removed, self.kept or UNSET))

    def forget_noted(self) -> None:
        self._noted.clear()
        self._is_noted = False

    def apply_changes(self, data: msgspec.Raw) -> None:
        """Apply a piece of `noted_changes` without noting it."""
        changes = decode_file(self._changes_type, bytes(data))
        self.table |= changes.changed
        for name in changes.removed:
            self.table.pop(name, None)
        self.version = changes.data_version
        self._keep(changes.kept)
        self.is_dirty = True

    def _keep(self, kept: dict[str, Any] | UnsetType) -> None:
        if kept is not UNSET:
            self.kept = kept

    def become(self, pieces: Sequence[msgspec.Raw]) -> None:
        """Replace the table with the pieces yielded by another broker's `whole`."""
        found = [decode_file(self._changes_type, bytes(piece)) for piece in pieces]
        if not found:
            raise ValueError("a table without its version")
        table = {name: config for piece in found for name, config in piece.changed.items()}
        self._keep(found[-1].kept)
        finish(self.becoming([table], found[-1].data_version))

    def becoming(
        self,
        parts: Iterable[Mapping[str, ConfigT]],
        version: DataVersion,
        others: dict[str, Any] | UnsetType = UNSET,
    ) -> Steps[None]:
        """Replace the configurations in steps, last the version and unknown members."""
        kept: set[str] = set()
        for part in parts:
            changed = [name for name, config in part.items() if self.table.get(name) != config]
            self.table.update(part)
            self._note(*changed)
            kept.update(part)
            yield
        names = list(self.table)
        for start in range(0, len(names), PIECE_COUNT_MAX):
            removed = [one for one in names[start : start + PIECE_COUNT_MAX] if one not in kept]
            for name in removed:
                self.table.pop(name, None)
            self._note(*removed)
            yield
        self._keep(others)
        self._adopt(version)

    def _adopt(self, version: DataVersion) -> None:
        self.version = version
        self._note()
        self._changed()

    def _note(self, *names: str) -> None:
        """Note a new version, and the names of changed and removed configurations."""
        self.is_dirty = True
        if self.noted is None:
            return
        self._noted.update(names)
        if not self._is_noted:
            self._is_noted = True
            self.noted()

    def _bump(self) -> None:
        self.version = self.version.next_version(self._clock_ms())
        self._note()
        self._changed()
