# SPDX-License-Identifier: Apache-2.0
"""A transactional producer that commits, rolls back, hangs or dies at random.

An SQLite table holds the outcomes; the first one written for a transaction counts. A check that
finds no outcome waits for PATIENCE_MS, then writes one itself, so that the local transaction can no
longer commit.

Arguments: name server, producer group, topic, table, seed, `send` or `answer` (checks only).
"""

import asyncio
import os
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

from cometmq.client import (
    Message,
    MessageExt,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.remoting.errors import CometError
from cometmq.runtime.clock import SystemClock

CLOCK: Final = SystemClock()
WORKERS: Final = 8
PATIENCE_MS: Final = 1_000
HANG_S: Final = 1.5
"""Longer than PATIENCE_MS, so that a check may decide the outcome of a transaction that hangs."""

STATES: Final = {"commit": TransactionState.COMMIT, "rollback": TransactionState.ROLLBACK}
FATES: Final = {
    "commit": 50,
    "rollback": 20,
    "forget": 10,
    "raise": 8,
    "hang": 8,
    "die late": 2,
    "die early": 2,
}
_BUSY_S: Final = 30


class Decisions:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._database().execute(
            "create table if not exists decisions (id text primary key, outcome text)"
        )

    def _database(self) -> sqlite3.Connection:
        if not hasattr(self._local, "database"):
            self._local.database = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None
            )
            self._local.database.execute("pragma journal_mode=wal")
            self._local.database.execute("pragma synchronous=off")
        database: sqlite3.Connection = self._local.database
        return database

    def find(self, key: str) -> str | None:
        query = "select outcome from decisions where id = ?"
        row = self._database().execute(query, (key,)).fetchone()
        return None if row is None else str(row[0])

    def decide(self, key: str, outcome: str) -> str:
        """Write the outcome unless one exists; return the outcome that counts."""
        self._database().execute("insert or ignore into decisions values (?, ?)", (key, outcome))
        found = self.find(key)
        assert found is not None
        return found

    def all(self) -> dict[str, str]:
        with closing(self._database().execute("select id, outcome from decisions")) as rows:
            return dict(rows.fetchall())


class Transactor:
    def __init__(self, decisions: Decisions, random: Random) -> None:
        self._decisions = decisions
        self._random = random

    async def execute(self, message: Message, fate: Any) -> TransactionState | None:
        key = str(message.keys)
        if fate == "die early":
            os._exit(1)
        if fate == "forget":
            return None
        if fate == "hang":
            await asyncio.sleep(HANG_S * self._random.random())
        outcome = self._decisions.decide(key, "rollback" if fate == "rollback" else "commit")
        if fate == "die late":
            os._exit(1)
        if fate == "raise":
            raise OSError("after the commit")
        return STATES[outcome]

    def check(self, message: MessageExt) -> TransactionState | None:
        key = message.keys[0]
        outcome = self._decisions.find(key)
        if outcome is None and CLOCK.now_ms() - message.born_timestamp > PATIENCE_MS:
            outcome = self._decisions.decide(key, self._random.choice(["commit", "rollback"]))
        return None if outcome is None else STATES[outcome]

    async def work(self, producer: TransactionProducer, topic: str, name: str) -> None:
        """Send forever; after an error, pause and continue."""
        fates, weights = list(FATES), list(FATES.values())
        for number in range(sys.maxsize):
            (fate,) = self._random.choices(fates, weights)
            key = f"{name}-{number}"
            try:
                await producer.send_in_transaction(
                    Message(topic, key.encode(), keys=key), fate, execute=self.execute
                )
            except (CometError, OSError):
                await asyncio.sleep(0.05)


async def main(namesrv: str, group: str, topic: str, table: str, seed: str, mode: str) -> None:
    transactor = Transactor(Decisions(Path(table)), Random(seed))
    options = TransactionOptions(
        instance_name=seed, send_timeout_ms=1_000, heartbeat_interval_ms=500,
        poll_namesrv_interval_ms=500, check_concurrency=4, rollback_on_error=False,
    )  # fmt: skip
    producer = TransactionProducer(group, namesrv, check=transactor.check, options=options)
    async with producer, asyncio.TaskGroup() as tasks:
        if mode == "send":
            for worker in range(WORKERS):
                tasks.create_task(transactor.work(producer, topic, f"{seed}-{worker}"))
        else:
            tasks.create_task(_stay(producer, topic))


async def _stay(producer: TransactionProducer, topic: str) -> None:
    while True:
        try:
            await producer.queues(topic)
        except CometError as error:
            sys.stdout.write(f"{error}\n")
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
