# SPDX-License-Identifier: Apache-2.0
"""A store's replication state other than its log: promise, incarnation, boot, and the state file.

At startup the broker loads the file, calls `started` with the result of recovery, and saves the
result before it opens or answers any connection. Later it saves a promise whenever
`cometmq.ha.member` requires it, and the membership when a record first names this incarnation.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from cometmq.ha.durable import Files
from cometmq.ha.record import Copy, Record
from cometmq.remoting.errors import UNREADABLE_JSON, CometError

STATE_FILE: Final = "haState.json"


class StateDamaged(CometError):
    """The state file cannot be read or belongs to another store; the message names the remedy."""


class Standing(StrEnum):
    """Whether a store can be trusted if the recorded in-sync set is lost (R10)."""

    NEW = "new"
    """The store was never in the set."""
    PROVEN = "proven"
    """The store was in the set and still has everything that it had then."""
    SUSPECT = "suspect"
    """The store was in the set and may have lost something since."""


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the broker knows about its store after recovery."""

    boot_id: str
    """The kernel's /proc/sys/kernel/random/boot_id, which changes when the host restarts."""
    was_closed: bool
    """The store was closed cleanly, so its `abort` file is absent."""
    has_cut_records: bool = False
    """Recovery has dropped more than an incomplete last record of the log or the journal."""


class State(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The durable state of one store in a broker group."""

    group: str
    ordinal: int
    incarnation: str
    boot_id: str
    promised: int = 0
    """The store obeys no master of a lower epoch, and never opens this one again (R3, R4)."""
    standing: Standing = Standing.NEW
    last_in_sync: tuple[Copy, ...] = ()
    """The set that this member saw last; it shows which stores may have the newest messages (R10).
    """

    @property
    def copy(self) -> Copy:
        """The identity of the data in this store."""
        return Copy(self.ordinal, self.incarnation)


def created(group: str, ordinal: int, boot_id: str, new_incarnation: Callable[[], str]) -> State:
    """Return the state of a store without a state file: it is new, empty, or not yet replicated."""
    return State(group=group, ordinal=ordinal, incarnation=new_incarnation(), boot_id=boot_id)


def is_unclean(state: State, boot: Boot) -> bool:
    """Return whether the store may have lost bytes that it had acknowledged (R2).

    The kernel writes the pages of a killed process; only a reboot after an unclean stop loses some.
    """
    host_crashed = not boot.was_closed and boot.boot_id != state.boot_id
    return host_crashed or boot.has_cut_records


def started(state: State, boot: Boot, new_incarnation: Callable[[], str]) -> State:
    """Return the state after startup, to be saved before the store is used; a store that may have
    lost bytes is a new copy.
    """
    if is_unclean(state, boot):
        standing = Standing.NEW if state.standing is Standing.NEW else Standing.SUSPECT
        state = msgspec.structs.replace(state, incarnation=new_incarnation(), standing=standing)
    return msgspec.structs.replace(state, boot_id=boot.boot_id)


def promised(state: State, epoch: int) -> State:
    """Return the state with this promise; unchanged if the state has a higher one."""
    return msgspec.structs.replace(state, promised=max(state.promised, epoch))


def proven(state: State) -> State:
    """Return the state of a store whose incarnation is in the recorded set."""
    return msgspec.structs.replace(state, standing=Standing.PROVEN)


def saw(state: State, record: Record) -> State:
    """Return the state after reading the record."""
    state = msgspec.structs.replace(state, last_in_sync=record.in_sync)
    return proven(state) if state.copy in record.in_sync else state


class StateFile:
    """The state file of a store."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._path = folder / STATE_FILE
        self._files = files

    def load(self, group: str, ordinal: int) -> State | None:
        """Return the saved state, None without a file; raise OSError or StateDamaged."""
        data = self._files.read(self._path)
        if data is None:
            return None
        try:
            state = msgspec.json.decode(data, type=State)
        except UNREADABLE_JSON as error:
            raise StateDamaged(
                f"{self._path} cannot be read: {error}. If this copy is not the last one, remove"
                " the store of this broker: it then copies the whole log from the master"
            ) from error
        if (state.group, state.ordinal) != (group, ordinal):
            raise StateDamaged(
                f"{self._path} belongs to broker {state.ordinal} of group {state.group!r}, but this"
                f" is broker {ordinal} of group {group!r}. Give each broker its own store folder"
            )
        return state

    def save(self, state: State) -> None:
        """Make the state durable; raise OSError."""
        self._files.replace(self._path, msgspec.json.encode(state))
