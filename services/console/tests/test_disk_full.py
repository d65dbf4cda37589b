# SPDX-License-Identifier: Apache-2.0
"""A console whose disk is full starts: its pages say why sends are refused."""

import errno
import os
import sqlite3
from contextlib import AsyncExitStack

import pytest

from cometmq.client.settings import ClientOptions
from cometmq.console.history import store as database
from cometmq.console.history.store import HistoryStore
from cometmq.console.login import tokens
from cometmq.remoting.log import NO_LOG
from cometmq.testing.runtime.clock import FakeClock

from .suites import Suite, console

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def full(monkeypatch):
    """Return a context in which no file can be opened for writing."""

    def refused(*_):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    def unwritten(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches:
        patches.setattr(database, "_opened", refused)
        patches.setattr("secrets.token_urlsafe", unwritten)
        yield patches


async def test_the_console_serves_pages_and_leaves_no_empty_token(full, tmp_path):
    async with AsyncExitStack() as stack:
        suite = Suite(NOWHERE, NOWHERE, ClientOptions(namesrv=NOWHERE))
        desk = await console(suite, tmp_path, stack)
        assert (await desk.web.get("/healthz")).status_code == 200
        asked = await desk.web.get("/audit", headers={"Authorization": "Bearer guessed-token"})
        assert asked.status_code == 401
    assert not (tmp_path / "token").exists()
    full.undo()
    assert tokens.own_token(tmp_path).read_text().startswith("admin admin ")


async def test_the_history_begins_once_there_is_space(tmp_path, full):
    clock = FakeClock()
    store = HistoryStore(tmp_path, days=14, mib_max=64, interval_ms=15_000, clock=clock, log=NO_LOG)
    await store.open()
    with pytest.raises(database.DiskFull):
        await store.record({"lag": 1})
    assert await store.lines(["lag"], 0, clock.now_ms()) == {"lag": []}
    full.undo()
    await store.record({"lag": 2})
    found = await store.lines(["lag"], 0, clock.now_ms())
    assert [value for _, value in found["lag"]] == [2, None]
    await store.close()


def test_sqlite_says_that_a_disk_is_full(tmp_path):
    schema = "PRAGMA max_page_count = 1; CREATE TABLE t (x)"
    with pytest.raises(database.DiskFull, match="free space on its disk"):
        database.opened(tmp_path / "n.db", NO_LOG, schema=schema, query="")
