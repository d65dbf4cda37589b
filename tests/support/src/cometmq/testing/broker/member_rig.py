# SPDX-License-Identifier: Apache-2.0
"""One member of a broker group with a record in memory, and a broker that only records its
actions.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock
from typing import Final

from msgspec.structs import astuple

from cometmq.broker.copies.roles.member_driver import Acting, MemberDriver, Position
from cometmq.ha import member as rules
from cometmq.ha.durable import OsFiles
from cometmq.ha.orders import HandOver, Order
from cometmq.ha.port import Answer
from cometmq.ha.record import Copy, Record
from cometmq.ha.role import Role
from cometmq.ha.state import State, StateFile
from cometmq.runtime.worker import Worker
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.ha.memory import Delay, MemoryPlace, no_delay


class ReadStateFile(StateFile):
    """A state file that tests read while a worker saves it.

    A reader that has opened the file before two saves would see the second one write into it,
    because saves swap two files; the broker itself reads its state only before it saves.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, OsFiles())
        self._lock = Lock()

    def load(self, group: str, ordinal: int) -> State | None:
        with self._lock:
            return super().load(group, ordinal)

    def save(self, state: State) -> None:
        with self._lock:
            super().save(state)


ME: Final = Copy(0, "m")
X: Final = Copy(1, "x")


def record(epoch: int, holder: Copy = ME, in_sync: tuple[Copy, ...] = (ME, X)) -> Record:
    return Record(uid="u", group="g", epoch=epoch, holder=holder, in_sync=in_sync)


class Duties(Acting):
    """Records every call of a member, also to its role, with the promise on disk at that time."""

    def __init__(self, file: StateFile) -> None:
        self.file = file
        self.acting: Acting = self
        self.calls: list[tuple[object, ...]] = []
        self.promises: list[int] = []
        self.error: OSError | None = None
        self.result: tuple[Answer, int] | None = None
        self.answered = asyncio.Event()
        self.answered.set()
        self.waiting = asyncio.Event()
        self.waiting.set()

    def note(self, *call: object) -> None:
        self.calls.append(call)
        saved = self.file.load("g", 0)
        self.promises.append(saved.promised if saved else 0)
        if self.error is not None:
            raise self.error

    def position(self) -> Position:
        return Position(last_log_epoch=2, max_offset=100, tables_epoch=2, tables=5, lag_bytes=7)

    async def perform(self, action: rules.Duty) -> None:
        """Record the first word of the name of the action's class, and the action's epoch or
        role.
        """
        if isinstance(action, rules.StopFollowing):
            await self.waiting.wait()
        given = () if isinstance(action, rules.Lead) else astuple(action)
        self.note(re.findall("[A-Z][a-z]+", type(action).__name__)[0].lower(), *given)

    async def repair_history(self) -> None:
        self.note("repair")

    async def hand_over(self, order: HandOver) -> tuple[Answer, int] | None:
        self.note("hand over", *astuple(order))
        await self.answered.wait()
        return self.result

    def obey(self, order: Order) -> None:
        self.note(type(order).__name__.lower(), *astuple(order))


class Rig:
    def __init__(self, folder: Path, *, promised: int = 0, delay: Delay = no_delay) -> None:
        self.file = ReadStateFile(folder)
        self.place = MemoryPlace()
        self.port = self.place.port(delay=delay)
        self.log = RecordingLog()
        self.duties = Duties(self.file)
        state = State(group="g", ordinal=0, incarnation="m", boot_id="b", promised=promised)
        self.file.save(state)
        self.worker = Worker("test")
        self.member = MemberDriver(
            state, self.file, worker=self.worker, record=self.port, log=self.log
        )
        self.member.duties = self.duties

    @property
    def role(self) -> Role:
        return self.member.status().role

    @property
    def saved(self) -> State:
        saved = self.file.load("g", 0)
        assert saved is not None
        return saved

    def write(self, content: Record) -> None:
        if self.place.current is None:
            self.place.create(content)
        else:
            self.place.replace(self.place.current, content)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await self.member.changed()


@asynccontextmanager
async def running(folder: Path, *, promised: int = 0) -> AsyncIterator[Rig]:
    rig = Rig(folder, promised=promised)
    task = asyncio.get_running_loop().create_task(rig.member.run())
    rig.member.observe(rules.Recovered())
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.wait([task])
        rig.worker.close()
