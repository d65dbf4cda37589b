# SPDX-License-Identifier: Apache-2.0
"""Configurations by name, with a version and a file: what topics and groups have in common.

Invariant: each change gives the table a new version and marks it for saving.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.log import Log
from cometmq.store.json_config import JsonTable


class Versioned(Protocol):
    """The content of a table's file."""

    data_version: DataVersion


FileT = TypeVar("FileT", bound=Versioned)
ConfigT = TypeVar("ConfigT")


class VersionedTable(ABC, Generic[FileT, ConfigT]):
    """A table in memory and its file."""

    def __init__(
        self,
        file: JsonTable[FileT] | None,
        entries: Callable[[FileT], Mapping[str, ConfigT]],
        *,
        clock_ms: Callable[[], int],
        changed: Callable[[], None],
        log: Log,
    ) -> None:
        """Load the file, of whose content `entries` returns the configurations."""
        loaded = file.load() if file is not None else None
        self.file = file
        self.table: dict[str, ConfigT] = {} if loaded is None else dict(entries(loaded))
        self.version = DataVersion(timestamp=clock_ms()) if loaded is None else loaded.data_version
        self.is_dirty = False
        self._clock_ms = clock_ms
        self._changed = changed
        self._log = log

    def get(self, name: str) -> ConfigT | None:
        """Return the configuration of a name."""
        return self.table.get(name)

    @abstractmethod
    def as_table(self) -> FileT:
        """Return version and configurations as they stand in the file."""

    def encode_for_file(self) -> bytes:
        """Return the content of the file and note that it is being saved."""
        self.is_dirty = False
        return encode_json(self.as_table())

    def _bump(self) -> None:
        self.version = self.version.next_version(self._clock_ms())
        self.is_dirty = True
        self._changed()
