# SPDX-License-Identifier: Apache-2.0
"""Runs group members as processes that can be started, stopped, frozen and killed."""

import asyncio
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.load.journal import JavaReader, JournalReader, LineReader
from tests.load.loaded_member import ORDERED_TOPIC, PLAIN_TOPIC, READY
from tests.load.verdicts import End, Life

from cometmq.peers.clients.javaclient import JavaClient
from cometmq.peers.processes import Child

MEMBER: Final = "tests.load.loaded_member"
LEAVE_S: Final = 45
JAVA_STARTED: Final = '{"event":"started"'
JAVA_TIMEOUT_S: Final = 3_600
ENDLESS: Final = 1_000_000_000


async def freeze(children: Sequence[Child], seconds: float) -> None:
    for child in children:
        os.killpg(child.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        for child in children:
            if child.exit_status is None:
                os.killpg(child.pid, signal.SIGCONT)


class Member(ABC):
    def __init__(self, number: int, folder: Path, namesrv: str) -> None:
        self.name = f"member-{number}"
        self.is_leaving = False
        self.is_frozen = False
        self.readers: list[LineReader] = []
        self.lives: list[Life] = []
        self.problems: list[str] = []
        self._folder = folder
        self._namesrv = namesrv
        self._children: list[Child] = []
        self._life_count = 0
        self._begin_ns = 0

    @property
    def is_alive(self) -> bool:
        return bool(self._children) and not self.is_leaving

    def join(self) -> None:
        self._begin_ns = time.monotonic_ns()
        self._life_count += 1
        self._children = self._start(self._life)

    def kill(self) -> None:
        if self._children:
            for child in self._children:
                child.kill()
            self._ended(End.KILLED)

    async def freeze(self, seconds: float) -> None:
        """Suspend the processes for a while, during which they may be killed."""
        self.is_frozen = True
        await freeze(self._children, seconds)
        self.is_frozen = False

    async def leave(self) -> None:
        self.is_leaving = True
        for child in self._children:
            status = await asyncio.to_thread(child.stop, LEAVE_S)
            if status != 0:
                self.problems.append(f"{self._life} ended with {status}:\n{child.log()[-3000:]}")
        self.is_leaving = False
        self._ended(End.LEFT)

    def look(self) -> None:
        dead = [child for child in self._children if child.exit_status is not None]
        if dead and not self.is_leaving:
            if not all(map(self._may_end, dead)):
                self.problems.append(f"{self._life} died:\n{dead[0].log()[-3000:]}")
            self.kill()

    def lives_at(self, now_ns: int) -> list[Life]:
        """Return all lives; the current one is given the end `now_ns`."""
        if not self._children:
            return self.lives
        return [*self.lives, Life(self._life, self._begin_ns, now_ns, End.AT_WORK)]

    @property
    @abstractmethod
    def can_leave(self) -> bool:
        """Whether SIGTERM makes the member leave cleanly."""

    @abstractmethod
    def _start(self, life: str) -> list[Child]:
        """Start the processes of one life, up to its kill, and attach readers to their output."""

    def _may_end(self, child: Child) -> bool:
        del child
        return False

    @property
    def _life(self) -> str:
        return f"{self.name}.{self._life_count}"

    def _ended(self, end: End) -> None:
        self.lives.append(Life(self._life, self._begin_ns, time.monotonic_ns(), end))
        self._children = []


class OwnMember(Member):
    """CometMQ's client: one process for both topics, with the same client id in each life."""

    @property
    def can_leave(self) -> bool:
        """Whether the process already handles SIGTERM."""
        return all(READY in child.log() for child in self._children)

    def _start(self, life: str) -> list[Child]:
        journal = self._folder / f"{life}.journal"
        self.readers.append(JournalReader(life, journal))
        command = [sys.executable, "-m", MEMBER, self.name, self._namesrv, str(journal)]
        return [Child(life, command, log_path=self._folder / f"{life}.log")]


class JavaMember(Member):
    """The official client: one process per topic, which does not unregister on SIGTERM."""

    can_leave = False

    def _start(self, life: str) -> list[Child]:
        children = []
        for topic in (PLAIN_TOPIC, ORDERED_TOPIC):
            log = self._folder / f"{life}-{topic}.log"
            is_ordered = topic == ORDERED_TOPIC
            logs = self._folder / f"{life}-{topic}-logs"
            stores = logs / "rocketmq_client.log"
            self.readers.append(JavaReader(life, log, stores=stores, is_ordered=is_ordered))
            options = {
                "namesrv": self._namesrv,
                "topic": topic,
                "group": f"{topic}-group",
                "orderly": str(is_ordered).lower(),
                "count": str(ENDLESS),
                "timeout-s": str(JAVA_TIMEOUT_S),
            }
            words = [word for name, value in options.items() for word in (f"--{name}", value)]
            properties = {"rocketmq.client.logRoot": str(logs)}
            client = JavaClient(self._folder, properties=properties)
            command = [*client.command(), "consume", *words]
            children.append(Child(life, command, log_path=log))
        return children

    def _may_end(self, child: Child) -> bool:
        """Return whether the client is still starting, when a late route makes it exit."""
        return JAVA_STARTED not in child.log()
