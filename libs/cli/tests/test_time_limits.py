# SPDX-License-Identifier: Apache-2.0
"""Commands keep the user's time limit even if servers accept connections and never answer."""

import asyncio
import re
import signal
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from cometmq.cli.consuming.consume import Printer
from cometmq.cli.consuming.source import Source, Unread
from cometmq.cli.limits import BriefEnd, Limit
from cometmq.cli.outcome import MISSING

from .every_verb import verbs

LIMIT_S = 1
END_S = 7
"""Most of it is for a slow machine: a command that ends in order takes less than 5 s."""
WORDS: dict[str, list[list[object]]] = {
    "produce": [["T", "x"]],
    "request": [["T", "x"]],
    "consume": [["T"], ["T", "--last", 2], ["T", "-g", "new", "--from", "first"], ["T", "-g", "g"]],
    "backup": [["{folder}/other", "T"]],
    "restore": [["{folder}/backup", "--yes", "--again"]],
    "topic analyse": [["T"]],
    "lag": [[], ["g"], ["--report", "{folder}/lag.html"]],
}
"""The arguments of each command with a --timeout of its own; also those of `lag`, which has the
--timeout of all commands, but asks many servers.
"""


@pytest.fixture(scope="module")
def cluster(running_cluster, tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("limits")) as cluster:
        cluster.start_broker("broker-a")
        yield cluster


@pytest.fixture
def stored(call, cluster):
    """Fill the topic T, of which a group and a backup exist."""
    folder = cluster.folder / "files"
    at = ("-n", cluster.namesrv)
    if not folder.exists():
        folder.mkdir()
        assert call("topic", "create", "T", "--queues", 2, *at).status == 0
        assert call("produce", "T", *"abcd", *at).status == 0
        read = ("consume", "T", "-g", "g", "--from", "first", "--max", 2, "--timeout", 60)
        assert call(*read, *at).status == 0
        assert call("backup", folder / "backup", "T", *at).status == 0
    return folder


def test_every_command_with_its_own_time_limit_is_tried():
    limited = {
        it.name
        for it in verbs()
        if it.asks_a_cluster and any("--timeout" in param.opts for param in it.command.params)
    }
    assert limited | {"lag"} == WORDS.keys()


@pytest.mark.parametrize("silent_server", ["broker-a", "namesrv"])
@pytest.mark.parametrize(
    ("verb", "words"), [(verb, words) for verb, cases in WORDS.items() for words in cases]
)
def test_the_limit_holds(call, cluster, stored, verb, words, silent_server):
    given = [str(word).format(folder=stored) for word in words]
    cluster.send(silent_server, signal.SIGSTOP)
    try:
        begin = monotonic()
        done = call(*verb.split(), *given, "--timeout", LIMIT_S, "-n", cluster.namesrv)
        took_s = monotonic() - begin
    finally:
        cluster.send(silent_server, signal.SIGCONT)
    assert took_s < LIMIT_S + END_S, done.err
    assert done.status == 1, done
    address = cluster.addresses.get(silent_server, cluster.namesrv)
    assert address in done.err
    assert "Traceback" not in done.err
    if verb != "consume":  # the limit of its start ends heartbeats
        assert not re.search("within (3000 ms|3 s)", done.err), "a request had the usual time"


def test_a_bench_beside_a_silent_broker_ends_with_a_line(call, cluster, stored):
    cluster.send("broker-a", signal.SIGSTOP)
    try:
        done = call("bench", "consume", "T", "--seconds", LIMIT_S, "-n", cluster.namesrv)
    finally:
        cluster.send("broker-a", signal.SIGCONT)
    assert done.status == 1
    assert f"{cluster.addresses['broker-a']} did not answer" in done.err
    assert "Traceback" not in done.err


class ComingEnds:
    """A broker that answers requests, but never delivers its messages."""

    asked = 0

    async def unread(self, _positions, _faults):
        self.asked += 1
        return Unread({"broker-a": "1 queue not read"}, is_coming=True)


async def test_consume_waits_a_part_of_its_limit_more_for_what_a_broker_has():
    ends: Any = ComingEnds()
    printer = Printer(Source(1, ends), "T", lambda *_: b"", Limit(0.4))
    begin = monotonic()
    try:
        async with asyncio.timeout(60):
            assert await printer.print_all(None) == 0
        took_s = monotonic() - begin
    finally:
        MISSING.clear()
    assert ends.asked == 2
    assert 0.5 <= took_s < 0.75  # it was 0.8


@asynccontextmanager
async def endless(left):
    """Wait for a peer at the end."""
    try:
        yield
    finally:
        try:
            await asyncio.Event().wait()
        finally:
            left.append(True)


@pytest.mark.parametrize("raised", [None, ValueError])
async def test_a_brief_end_leaves_all_contexts_that_wait(raised):
    left: list[bool] = []

    async def work():
        async with BriefEnd(0.01) as end:
            for _ in range(3):
                await end.enter_async_context(endless(left))
            if raised:
                raise raised
        return "done"

    if raised:
        with pytest.raises(raised):
            await work()
    else:
        assert await work() == "done"
    assert left == [True] * 3
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_cancellation_goes_on_after_a_brief_end():
    left: list[bool] = []
    begun = asyncio.Event()

    async def work():
        async with BriefEnd(0.01) as end:
            await end.enter_async_context(endless(left))
            begun.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work())
        await begun.wait()
        task.cancel()
    assert task.cancelled()
    assert left == [True]
