# SPDX-License-Identifier: Apache-2.0
"""Configurations by name, with a version and a file: the common base of topics and groups.

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
    def __init__(
        self,
        file: JsonTable[FileT] | None,
        entries: Callable[[FileT], Mapping[str, ConfigT]],
        *,
        clock_ms: Callable[[], int],
        changed: Callable[[], None],
        log: Log,
    ) -> None:
        """Load the file; `entries` returns the configurations in its content."""
        loaded = file.load() if file is not None else None
        self.file = file
        self.table: dict[str, ConfigT] = {} if loaded is None else dict(entries(loaded))
        self.version = DataVersion(timestamp=clock_ms()) if loaded is None else loaded.data_version
        self.is_dirty = False
        self._clock_ms = clock_ms
        self._changed = changed
        self._log = log

    def get(self, name: str) -> ConfigT | None:
        return self.table.get(name)

    @abstractmethod
    def as_table(self) -> FileT:
        """Return version and configurations as they are saved."""

    def encode_for_file(self) -> bytes:
        """Return the content of the file and clear `is_dirty`."""
        self.is_dirty = False
        return encode_json(self.as_table())

    def _bump(self) -> None:
        self.version = self.version.next_version(self._clock_ms())
        self.is_dirty = True
        self._changed()
