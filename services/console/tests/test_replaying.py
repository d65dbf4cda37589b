# SPDX-License-Identifier: Apache-2.0
"""A replay of dead letters goes on after its request; a page shows it, and stops it."""

import asyncio
import re

import pytest

from cometmq.client import Message, Producer
from cometmq.client.testing import eventually
from cometmq.console import jobs
from cometmq.console.web.problems import Problem
from cometmq.insight.changes.replays import Pace
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import Child
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import dead_letter_topic

from .desks import JSON, OPERATOR, VIEWER, hidden
from .message_pages import carry_out, data, page

COUNT = 4


@pytest.fixture
async def dead(plain_suite, plain_admin, request):
    """Return a group with dead letters, and the topic to which they are sent."""
    group = f"resent-{request.node.name[:60]}"
    await plain_admin.create_group(SubscriptionGroupConfig(group_name=group))
    for topic in (dead_letter_topic(group), f"to-{group}"):
        await plain_admin.create_topic(topic, queue_count=1)
    async with Producer("buriers", namesrv=plain_suite.namesrv) as producer:
        for number in range(COUNT):
            await producer.send(Message(dead_letter_topic(group), b"%d" % number))
    return group


@pytest.fixture
def gate(monkeypatch):
    """Hold each replay before its third message; requests do not wait for replays."""
    opened, sent = asyncio.Event(), 0

    async def wait(_pace):
        nonlocal sent
        sent += 1
        if sent > 2:
            await opened.wait()

    monkeypatch.setattr(Pace, "wait", wait)
    monkeypatch.setattr(jobs, "GRACE_S", 0)
    return opened


async def begin(live, group, **more):
    await live.log_in("operator")
    form = {"group": group, "topic": f"to-{group}", "rate": "1", **more}
    done = await carry_out(live, "/dead-letters/replay", form)
    assert done.status_code == 303, done.text
    assert done.headers["location"] == f"/dead-letters/progress?group={group}"

    async def two():
        found = await data(live, "/dead-letters/progress", group=group)
        return found if found["sent"] == 2 else None

    return await eventually(two)


async def stored(admin, topic):
    return sum(it.max_offset for it in (await admin.topic_stats(topic)).values())


async def test_a_replay_of_another_program_is_named_until_that_ends(
    live, plain_suite, dead, tmp_path
):
    options = ("--topic", f"to-{dead}", "--rate", "0.01", "--yes", "-n", plain_suite.namesrv)
    command = [str(PROGRAM), "dlq", "replay", dead, *options]
    form = {"group": dead, "topic": f"to-{dead}", "from_start": "1"}

    async def named():
        shown = await page(live, "/dead-letters/group", group=dead)
        return re.findall(rf"replay of {dead} by (\S+) runs now", shown)

    assert await named() == []
    child = Child("replay", command, log_path=tmp_path / "log")
    try:
        (client,) = await eventually(named)
        plan = await live.web.get("/dead-letters/replay", params=form, headers={**JSON, **OPERATOR})
        found = plan.json()["plan"]["consequences"]
        assert any(it.startswith(f"a replay of {dead} by {client} runs now: ") for it in found)
    finally:
        child.kill()  # it leaves the group at no broker

    async def forgotten():
        return not await named()

    await eventually(forgotten)


async def test_a_replay_shows_its_progress_until_it_ends(live, plain_admin, dead, gate):
    found = await begin(live, dead)
    assert (found["is_running"], found["messages"]) == (True, COUNT)
    live.clock.advance(1_000)
    found = await data(live, "/dead-letters/progress", group=dead)
    assert (found["per_s"], found["left_s"]) == (2.0, 1.0)
    assert found["text"] == "Sent 2 of 4 messages."
    shown = await page(live, "/dead-letters/progress", group=dead)
    assert "Sent 2 of 4 messages. The replay goes on when you leave this page." in shown
    assert 'max="4" value="2"' in shown
    assert "Stop" not in shown  # a viewer
    assert "A replay is running" in await page(live, "/dead-letters/group", group=dead)
    again = {"group": dead, "topic": f"to-{dead}", "from_start": "1"}
    refused = await live.web.get("/dead-letters/replay", params=again, headers={**JSON, **OPERATOR})
    assert "are being sent again" in refused.json()["plan"]["refusal"]
    gate.set()

    async def ended():
        found = await data(live, "/dead-letters/progress", group=dead)
        return None if found["is_running"] else found

    found = await eventually(ended)
    assert (found["sent"], found["failed"]) == (COUNT, False)
    assert found["text"] == f"Sent 4 messages of {dead} to to-{dead}."
    assert found["text"] in await page(live, "/dead-letters/progress", group=dead)
    assert await stored(plain_admin, f"to-{dead}") == COUNT
    (end, _) = await live.audit.newest(2)
    assert (end.outcome, end.text) == ("done", found["text"])


async def test_no_notice_of_the_beginning_stands_above_a_replay_that_has_ended(live, dead, gate):
    await begin(live, dead)  # by a browser that has not followed to the page of its progress yet
    gate.set()

    async def ended():
        return not (await data(live, "/dead-letters/progress", group=dead))["is_running"]

    await eventually(ended)
    shown = (await live.web.get("/dead-letters/progress", params={"group": dead})).text
    (notice,) = re.findall(r'<p class="notice.*?</p>', shown)
    assert f"Sent 4 messages of {dead}" in notice
    assert "goes on" not in shown


async def test_a_program_is_told_that_a_replay_has_begun(live, dead, gate):
    form = {"group": dead, "topic": f"to-{dead}"}
    as_operator = {"headers": {**JSON, **OPERATOR}}
    plan = await live.web.get("/dead-letters/replay", params=form, **as_operator)
    form["mark"] = plan.json()["plan"]["mark"]
    begun = (await live.web.post("/dead-letters/replay", data=form, **as_operator)).json()
    assert (begun["outcome"], begun["see"]) == ("begun", f"/dead-letters/progress?group={dead}")
    gate.set()


async def test_the_progress_names_the_command_of_the_plan(live, dead, gate):
    options = "--since 2026-01-01T00:00Z --rate 1000 --topic to-{0} --from-start"
    more = {"rate": "1000", "since": "2026-01-01T00:00Z", "from_start": "1"}
    await begin(live, dead, **more)
    wanted = f"cometmq -n n:9876 dlq replay {dead} {options.format(dead)}"
    where = {"group": dead}
    answer = await live.web.get("/dead-letters/progress", params=where, headers={**JSON, **VIEWER})
    assert answer.json()["command"] == wanted
    assert wanted in await page(live, "/dead-letters/progress", **where)
    stop = await live.web.get("/dead-letters/stop", params=where, headers={**JSON, **OPERATOR})
    assert stop.json()["plan"]["command"] == ""
    gate.set()


async def test_a_replay_is_stopped_and_the_next_one_continues(live, plain_admin, dead, gate):
    await begin(live, dead)
    shown = await live.web.get("/dead-letters/progress", params={"group": dead})
    form = {"group": dead, "csrf": hidden(shown, "csrf"), "mark": hidden(shown, "mark")}
    stopped = await live.web.post("/dead-letters/stop", data=form)
    assert stopped.status_code == 303, stopped.text
    shown = await live.web.get("/dead-letters/progress", params={"group": dead})
    assert "ends after its current message" in shown.text
    assert 'name="mark"' not in shown.text
    gate.set()

    async def ended():
        found = await data(live, "/dead-letters/progress", group=dead)
        return None if found["is_running"] else found

    assert (await eventually(ended))["text"].startswith("Stopped: sent 3 messages")
    assert await stored(plain_admin, f"to-{dead}") == 3
    form = {"group": dead, "topic": f"to-{dead}"}
    plan = await live.web.get("/dead-letters/replay", params=form, headers={**JSON, **OPERATOR})
    assert plan.json()["plan"]["before"]["messages"] == 1


async def test_a_stopping_console_saves_what_was_sent(live, plain_admin, dead, gate):
    await begin(live, dead)
    await live.desk.jobs.close()
    assert not gate.is_set()
    found = await data(live, "/dead-letters/progress", group=dead)
    assert (found["is_running"], found["sent"]) == (False, 2)
    (end, _) = await live.audit.newest(2)
    assert (end.outcome, end.text) == ("failed", "the program was stopped, or has a fault")
    form = {"group": dead, "topic": f"to-{dead}"}
    plan = await live.web.get("/dead-letters/replay", params=form, headers={**JSON, **OPERATOR})
    assert plan.json()["plan"]["before"]["messages"] == 2


async def test_a_replay_that_fails_says_so(live, dead, gate, monkeypatch):
    await begin(live, dead)

    async def refuse(*_args, **_more):
        raise CometError("the broker is gone")

    monkeypatch.setattr(type(live.desk.admin), "replay", refuse)
    gate.set()

    async def failed():
        return (await data(live, "/dead-letters/progress", group=dead))["failed"]

    await eventually(failed)
    text = await page(live, "/dead-letters/progress", group=dead)
    assert "the broker is gone" in text
    assert "2 of 4" in text


async def test_there_is_no_progress_of_what_never_ran(live):
    for path, who in (("progress", VIEWER), ("stop", OPERATOR)):
        asked = await live.web.get(f"/dead-letters/{path}?group=nobody", headers={**JSON, **who})
        assert asked.status_code == 404


async def test_few_changes_run_at_the_same_time(live, dead, gate, monkeypatch):
    monkeypatch.setattr(jobs, "RUNNING_MAX", 1)
    await begin(live, dead)
    other = jobs.Job("other", total=1, count=lambda: 0, stop=lambda: None, page="/", command="")
    with pytest.raises(Problem, match="too many others"):
        await live.desk.jobs.run(other, lambda: asyncio.sleep(0, "done"))
    gate.set()
