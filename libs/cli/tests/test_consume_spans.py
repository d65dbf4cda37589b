# SPDX-License-Identifier: Apache-2.0
"""Parts of a topic: --last, ranges, filters, and the ends that a run keeps to."""

import asyncio
from typing import Any

import pytest

from cometmq.cli.archives import backup
from cometmq.cli.consuming import spans
from cometmq.cli.consuming.spans import Span, _Reader, parse_span
from cometmq.client import InvalidArgument, MessageQueue
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.remoting.errors import RemoteProtocolError

HOUR_MS = 3_600_000


@pytest.fixture
def now_ms(monkeypatch):
    monkeypatch.setattr(spans, "wall_ms", lambda: 1_800_000_000_000)
    return 1_800_000_000_000


@pytest.fixture
def five(ask, topic):
    """Send the numbers 1 to 5 to the topic, one after another."""
    sent = ask("produce", topic, *"12345", "--in-flight", 1, "-p", "price=5")
    assert sent.status == 0, sent.err
    return topic


def test_the_newest_messages_are_printed_in_order_and_the_command_ends(ask, five):
    assert ask("consume", five, "--last", 3).out == "3\n4\n5\n"
    assert ask("consume", five, "--last", 100).out == "1\n2\n3\n4\n5\n"
    assert sorted(ask("consume", five, "--from", "first", "--no-follow").out.split()) == [*"12345"]


def test_last_can_follow(ask, five):
    done = ask("consume", five, "--last", 5, "--follow", "--max", 5)
    assert sorted(done.out.split()) == [*"12345"]


def test_a_range_has_what_was_stored_in_it(ask, five):
    lines = ask("consume", five, "--last", 5, "--json").lines
    begin, end = lines[1]["store_timestamp"], lines[3]["store_timestamp"]
    wanted = [it["body"] for it in lines if begin <= it["store_timestamp"] < end]
    assert sorted(ask("consume", five, "--from", f"@{begin}:{end}").out.split()) == sorted(wanted)
    before = sorted(it["body"] for it in lines if it["store_timestamp"] < begin)
    assert sorted(ask("consume", five, "--until", begin).out.split()) == before
    assert ask("consume", five, "--from", "@90m:60m").out == ""
    assert sorted(ask("consume", five, "--from", "@90m:", "--no-follow").out.split()) == [*"12345"]


@pytest.mark.parametrize(
    "options", [("--from", "@2999-01-01:2999-01-02"), ("--from", "2999-01-01", "--no-follow")]
)
def test_a_range_in_the_future_has_no_messages(ask, five, options):
    done = ask("consume", five, *options)
    assert (done.status, done.out) == (0, "")
    assert f"{options[1]} is in the future: there are no messages\n" in done.err


def test_an_empty_topic_ends_at_once(ask, topic):
    assert ask("consume", topic, "--last", 3)[:2] == (0, "")


def test_a_filter_selects_by_property_and_by_tag(ask, five):
    assert ask("produce", five, "cheap", "--tag", "A", "-p", "price=1").status == 0
    found = ask("consume", five, "--filter", "price < 3", "--from", "first", "--no-follow")
    assert (found.status, found.out) == (0, "cheap\n"), found.err
    assert ask("consume", five, "--tag", "A", "--last", 100).out == "cheap\n"
    live = ask("consume", five, "--filter", "price < 3", "--from", "first", "--max", 1)
    assert (live.status, live.out) == (0, "cheap\n"), live.err


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--filter", "price >"), "the SQL92 condition"),
        (("--filter", "a = 1", "--tag", "A"), "--tag and --filter are two filters"),
        (("--last", 3, "--from", "first"), "--last cannot be combined"),
        (("--last", 3, "--queue", "b:0", "--offset", 1), "--offset cannot be combined with --last"),
        (("--last", 3, "-g", "G"), "--until, --last, --no-follow and ranges cannot"),
        (("--until", "5m", "--follow"), "--follow cannot be combined with an end"),
        (("--from", "@5m:90m"), "the range is empty"),
        (("--from", "@x:y"), "@x:y is no range"),
        (("--from", "@:"), "@: is no range"),
        (("--from", "@5m:1m", "--until", "1m"), "--until cannot be combined with a range"),
        (("--format", "%v", "--json"), "--format, --headers and --json are three forms"),
    ],
)
def test_options_that_contradict_each_other_are_refused(call, options, line):
    call("consume", "T", *options).assert_refused(2, line)


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("@2h:1h", (2, 1)),
        ("@2027-01-15T06:00:00+00:00:2027-01-15T07:00Z", (2, 1)),
        ("@1799992800000:1799996400000", (2, 1)),
        ("@:1h", (None, 1)),
        ("@2h:", (2, None)),
        ("@2h", (2, None)),
        ("@2027-01-15T06:00Z", (2, None)),
        ("@2027-01-15#06:00:00:000:1h", (None, 1)),
    ],
)
def test_ranges_of_times_that_contain_colons(now_ms, monkeypatch, text, hours):
    monkeypatch.setenv("TZ", "UTC")
    span = parse_span(text, None, None, None)
    begin, until = hours
    assert span.until_ms == (None if until is None else now_ms - until * HOUR_MS)
    if begin is not None:
        assert span.begin_ms == now_ms - begin * HOUR_MS


class StuckBroker:
    """Answers each pull with the same offset."""

    async def pull(self, *_, **__):
        return Pulled(PullStatus.NO_MATCHED, [], 0, 0, 10)


def test_a_broker_that_never_advances_does_not_make_the_command_run_for_ever():
    async def main():
        brokers: Any = {"b": StuckBroker()}
        admin: Any = None
        reader = _Reader(admin, brokers, "*", Span(start="first", follow=False))
        reader._spans = {MessageQueue("T", "b", 0): (0, 10)}
        return [message async for message in reader.messages()]

    with pytest.raises(RemoteProtocolError, match="which would never end"):
        asyncio.run(main())


class BrokerWithItsClockSetBack:
    """Its store times are 100, 101, 102, and then 40, 41."""

    name = "b"

    async def min_offset(self, *_):
        return 0

    async def max_offset(self, *_):
        return 5

    async def search_offset(self, *_):
        return 1

    async def last_offset_until(self, *_):
        return 4


def test_a_range_has_what_was_stored_after_the_clock_was_set_back():
    admin: Any = None
    broker: Any = BrokerWithItsClockSetBack()
    queue = MessageQueue("T", "b", 0)

    async def main():
        reader = _Reader(admin, {"b": broker}, "*", Span(start="first", until_ms=101))
        assert await reader._bounds(broker, queue, None) == (0, 5)
        span = await backup._span(broker, queue, backup.Wanted(until_ms=101))
        assert (span.first, span.end) == (0, 5)

    asyncio.run(main())


def test_an_unknown_range_is_an_invalid_argument():
    with pytest.raises(InvalidArgument):
        parse_span("@1h:2h", None, None, None)


def test_a_broker_without_an_end_is_not_read_for_ever(ask, five, tmp_path, monkeypatch):
    async def empty(_broker, _topic, _queue_id, offset, **_):
        return Pulled(PullStatus.NO_MATCHED, [], offset + 1, 0, 1 << 62)

    async def max_offset(*_):
        return 1 << 62

    monkeypatch.setattr(BrokerAdmin, "pull", empty)
    monkeypatch.setattr(BrokerAdmin, "max_offset", max_offset)
    read = ("consume", five, "--from", "first", "--no-follow")
    for command in (read, ("backup", tmp_path / "copy", five)):
        done = ask(*command)
        assert (done.status, done.out) == (1, ""), done.err
        assert "pulls in a row" in done.err
