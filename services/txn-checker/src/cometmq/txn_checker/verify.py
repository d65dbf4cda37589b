# SPDX-License-Identifier: Apache-2.0
"""Compares a txn-checker's folder with the queues of its brokers.

The checker may be running: the folder is copied first, and the copy is recovered as after a crash.
The brokers continue to store messages meanwhile, so messages newer than the copy are not
differences.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_messages import HalfMessage, Span
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.message.flags import java_hash
from cometmq.store.layout import FOREIGN
from cometmq.store.os_disk import OsDisk
from cometmq.txn_checker.ledger import FOLDERS, REDO_LOG, Ledger
from cometmq.txn_checker.tables import Entry, State

DIFFERENCES_MAX: Final = 1_000
NO_END: Final = "is ended in the table, but by no op message"
_COPY_ATTEMPTS: Final = 10


class Verification(msgspec.Struct):
    """The differences between one broker's state table and its queues."""

    broker: str
    entry_count: int = 0
    open_count: int = 0
    half_behind: int = 0
    """Number of half messages that are not in the tables yet."""
    op_behind: int = 0
    differences: list[str] = []

    def note(self, difference: str) -> None:
        """Add a difference; ignore all after the first DIFFERENCES_MAX."""
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(difference)


async def verify_folder(folder: Path, admin: AdminClient) -> list[Verification]:
    """Compare the tables of each broker in the folder with its queues, one broker at a time."""
    masters = await admin.masters()
    names = await asyncio.to_thread(_folders, folder)
    found = []
    for name in sorted(names | masters.keys()):
        verification = Verification(name)
        found.append(verification)
        if name not in masters:
            verification.note("no name server knows a master of this name")
        elif name not in names:
            await _verify_unfollowed(masters[name], verification)
        else:
            with tempfile.TemporaryDirectory() as copy:
                await _verify(folder / name, Path(copy), masters[name], verification)
    return found


def is_checker_folder(folder: Path) -> bool:
    """Return whether this folder holds a txn-checker's tables for at least one broker."""
    return any((folder / name / REDO_LOG).is_dir() for name in _folders(folder))


def _folders(folder: Path) -> set[str]:
    folders = (path for path in folder.iterdir() if not path.name.startswith(FOREIGN))
    return {path.name for path in folders if path.is_dir()}


async def _verify_unfollowed(master: BrokerAdmin, found: Verification) -> None:
    halves = (await master.transaction_queues()).halves
    found.half_behind = halves.end - halves.begin
    if found.half_behind:
        found.note("the txn-checker has no state table for this broker")


async def _verify(folder: Path, copy: Path, master: BrokerAdmin, found: Verification) -> None:

    # read before copying, so that the copy includes all committed progress
    before = await master.transaction_queues()
    ledger = await asyncio.to_thread(recovered_copy, folder, copy)
    if ledger.is_new:
        await _verify_unfollowed(master, found)
        return
    now = await master.transaction_queues()
    found.entry_count = ledger.halves.next - ledger.halves.begin
    found.open_count = ledger.halves.open_count
    found.half_behind = max(0, now.halves.end - ledger.halves.next)
    found.op_behind = max(0, now.ops.end - ledger.ops.next)
    if ledger.halves.next > now.halves.end or ledger.ops.next > now.ops.end:
        found.note("the tables are ahead of the queues: the broker lost messages")
    if before.halves.begin > ledger.halves.low_water:
        found.note(
            f"progress was committed up to half {before.halves.begin}, "
            f"but {ledger.halves.low_water} is open"
        )
    await _compare(ledger, master, Span(before.ops.begin, now.ops.end), before.halves.begin, found)


async def _compare(
    ledger: Ledger, master: BrokerAdmin, ops: Span, examined: int, found: Verification
) -> None:
    begin, end = examined, ledger.halves.next
    is_ended, is_known = bytearray(max(0, end - begin)), bytearray(max(0, end - begin))
    async for it in master.read_ends(ops):
        if begin <= it.half_offset < end:
            index = it.half_offset - begin
            is_ended[index] = True
            is_known[index] |= it.op_offset < ledger.ops.next
    async for message in master.read_halves(Span(begin, end)):
        index = message.offset - begin
        if message.offset < ledger.halves.begin:  # the table has forgotten it, as one that is ended
            difference = None if is_ended[index] else NO_END
        else:
            entry = ledger.halves.entry(message.offset)
            difference = _difference(
                message, entry, is_ended=bool(is_ended[index]), is_known=bool(is_known[index])
            )
        if difference:
            found.note(f"half {message.offset}: {difference}")


def _difference(
    half: HalfMessage, entry: Entry | None, *, is_ended: bool, is_known: bool
) -> str | None:
    """Describe how an entry contradicts the queues; None if it does not.

    `is_ended` says whether an op message ends the half message, `is_known` whether the checker had
    read such an op message when its folder was copied.
    """
    if entry is None:
        return "is not in the table"
    message = half.message
    if entry.physical_offset != message.physical_offset:
        return f"is at {message.physical_offset}, not at {entry.physical_offset}"
    if entry.group_hash != java_hash(half.group):
        return f"belongs to the group {half.group}, not to one with hash {entry.group_hash}"
    if entry.state == State.PREPARED and is_known:
        return "is ended by an op message, but open in the table"
    if entry.state != State.PREPARED and not is_ended:
        return NO_END
    return None


def recovered_copy(folder: Path, copy: Path) -> Ledger:
    """Copy a broker's folder and recover the copy, as after a crash; blocks.

    The log is copied last, so it contains all changes that the copied tables lack. If its oldest
    file is deleted meanwhile, the copy is repeated; raise SettingsError after _COPY_ATTEMPTS.
    """
    for _ in range(_COPY_ATTEMPTS):
        try:
            oldest = min((path.name for path in (folder / REDO_LOG).glob("[0-9]*")), default=None)
            for name in FOLDERS:
                shutil.rmtree(copy / name, ignore_errors=True)
                if (folder / name).is_dir():
                    shutil.copytree(folder / name, copy / name)
        except (FileNotFoundError, shutil.Error):
            continue
        if oldest is None or (folder / REDO_LOG / oldest).exists():
            return Ledger(OsDisk(), str(copy))
    raise SettingsError(
        f"{folder}: changes too fast to be copied; try again or stop the txn-checker"
    )
