# SPDX-License-Identifier: Apache-2.0
import asyncio
from typing import Any

import pytest

from cometmq.client import MessageQueue
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.insight.changes import replays
from cometmq.insight.changes.messages import ReplayDeadLetters
from cometmq.insight.changes.replays import (
    Choice,
    Pace,
    Replay,
    Replayed,
)
from cometmq.insight.life import REPLAYS_MAX, replays_of
from cometmq.insight.model import Unknown
from cometmq.remoting.errors import MessageIllegal, SystemBusy


class OneRefuses:
    """An admin whose cluster refuses one of three dead letters."""

    client_id = "c"

    def __init__(self, error):
        self.error = error
        self.sent = []
        self.stored = None
        self.namesrv = NoneIsSentAgain()

    async def masters_of(self, _topic):
        return []

    async def queues(self, _topic):
        return []

    async def dead_letters(self, _group, **_):
        for number in range(3):
            place = ("", MessageQueue("%DLQ%g", "b", 0), number, 0, 0, 0, 0, 0, "", 0, "")
            yield MessageExt("%DLQ%g", b"%d" % number, None, (), {}, "id", *place)

    async def replay(self, message, _group, *, topic):
        if message.body == b"1":
            raise self.error
        self.sent.append(message.body)

    async def committed_offset(self, _group, _queue):
        return self.stored

    async def max_offset(self, _queue):
        return 3

    async def commit_offset(self, _group, _queue, end):
        self.end = end


class NoneIsSentAgain:
    """An admin whose cluster has no retry topic."""

    asked = 0

    @property
    def namesrv(self):
        return self

    async def route(self, _topic):
        self.asked += 1


async def test_only_the_newest_dead_letters_are_looked_up():
    admin: Any = NoneIsSentAgain()
    dead = [it async for it in OneRefuses(None).dead_letters("g")] * 50
    *older, first = (await replays_of(admin, "g", dead))[: 150 - REPLAYS_MAX + 1]
    assert older == [Unknown("only the newest 100 are looked up")] * 50
    assert (first, admin.asked) == (0, REPLAYS_MAX)


@pytest.mark.parametrize("error", [MessageIllegal("too large"), InvalidArgument("too large")])
async def test_a_dead_letter_that_is_refused_for_good_blocks_no_other(error):
    admin: Any = OneRefuses(error)
    run = Replay("g")
    choice = Choice(None, None, None, None, None, None, None)
    await run.run(admin, choice, Replayed(admin, "g", is_ignored=False))
    assert admin.sent == [b"0", b"2"]
    assert (len(run.sent), len(run.broken), admin.end) == (2, 1, 3)
    assert [*run.broken.values()] == [f"it cannot be sent again: {error}"]


async def test_a_failure_of_the_cluster_ends_a_replay():
    admin: Any = OneRefuses(SystemBusy("later"))
    run = Replay("g")
    choice = Choice(None, None, None, None, None, None, None)
    with pytest.raises(SystemBusy):
        await run.run(admin, choice, Replayed(admin, "g", is_ignored=False))
    assert (admin.sent, admin.end) == ([b"0"], 1)


@pytest.mark.parametrize(
    ("stored", "committed"),
    [(None, 1), (2, None), (1, None), (9, 1)],  # 9 is of an older topic with the same name
)
async def test_the_position_of_another_replay_does_not_go_back(stored, committed):
    admin: Any = OneRefuses(SystemBusy("later"))
    replayed = Replayed(admin, "g", is_ignored=False)
    await replayed.load()
    admin.stored = stored  # by a replay that runs at the same time
    replayed.sent(await anext(admin.dead_letters("g")))
    await replayed.save()
    assert getattr(admin, "end", None) == committed


@pytest.mark.parametrize(
    ("topic", "is_dry", "asked"), [(None, True, 2), (None, False, 3), ("other", False, 0)]
)
async def test_a_dry_run_looks_up_a_limited_number(monkeypatch, topic, is_dry, asked):
    monkeypatch.setattr(replays, "LOOKED_UP_MAX", 2)
    admin: Any = OneRefuses(InvalidArgument("too large"))
    choice = Choice(None, None, None, None, None, None, None)
    run = Replay("g", topic, is_dry=is_dry)
    await run.run(admin, choice, Replayed(admin, "g", is_ignored=False))
    assert admin.namesrv.asked == asked


@pytest.mark.parametrize(
    ("tag", "count_max", "topic", "is_ignored", "count", "options"),
    [
        (None, None, None, False, 99, ""),
        ("odd", None, None, False, 99, " --tag odd"),  # those that were sent are looked up
        (None, 100, None, False, 99, " --max 99"),
        (None, None, "other", False, 99, " --topic other"),  # the position is kept
        ("odd", None, "other", False, 2, " --id 0 --id 1 --topic other --from-start"),
        (None, 9, None, True, 2, " --id 0 --id 1 --from-start"),
        (None, None, None, True, 21, None),  # too many ids
    ],
)
def test_the_command_for_the_rest_sends_only_the_rest(
    tag, count_max, topic, is_ignored, count, options
):
    change = ReplayDeadLetters(
        group="g", tag=tag, count_max=count_max, topic=topic, from_start=is_ignored
    )
    rest = change.rest([str(number) for number in range(count)])
    found = None if rest is None else rest.command().removeprefix("cometmq dlq replay g")
    assert found == options


def test_the_rest_of_a_replay_begins_at_the_same_time():
    rest = ReplayDeadLetters(group="g", since="2026-01-01T00:00Z", rate=1e6).rest(["1"])
    assert rest is not None
    assert rest.command() == (
        "cometmq dlq replay g --since 2026-01-01T00:00:00.000Z --rate 1000000"
    )


async def test_the_pace_is_kept():
    pace, loop = Pace(200), asyncio.get_running_loop()
    begin = loop.time()
    for _ in range(11):
        await pace.wait()
    assert loop.time() - begin >= 10 / 200


async def test_a_dry_run_sends_nothing():
    choice = Choice(None, None, None, None, None, None, None)
    dry: Any = OneRefuses(SystemBusy("later"))
    run = Replay("g", is_dry=True)
    await run.run(dry, choice, Replayed(dry, "g", is_ignored=False))
    assert (len(run.sent), dry.sent) == (3, [])
    assert not hasattr(dry, "end")  # no position was committed
