# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace
from typing import Any

from cometmq.broker.lanes.send_runs import _call
from cometmq.broker.statistics.refused import (
    ENTRIES_MAX,
    PAUSE_MS,
    REMARK_CHARS_MAX,
    RecentRefusals,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.refusals import plain_remark
from cometmq.runtime.acl.errors import no_permission, wrong_signature

SEND = RequestCode.SEND_MESSAGE_V2
BUSY = ResponseCode.SYSTEM_BUSY


def call(topic="T", code=SEND, peer="10.0.0.1:5") -> Any:
    return SimpleNamespace(
        code=code, header=SimpleNamespace(topic=topic), peer=SimpleNamespace(address=peer)
    )


def test_equal_refusals_are_counted_together():
    table = RecentRefusals()
    table.note(call(), BUSY, "first", 100)
    table.note(call(peer="10.0.0.2:6"), BUSY, "second", 300)
    table.note(call("U"), BUSY, None, 400)
    newest, older = table.newest()
    assert (newest.subject, newest.remark) == ("U", "")
    assert (older.count, older.first_ms, older.last_ms) == (2, 100, 300)
    assert (older.peer, older.remark) == ("10.0.0.2:6", "second")


def test_refusals_are_counted_by_code_for_ever():
    table = RecentRefusals()
    for number in range(ENTRIES_MAX + 5):
        table.note(call(f"T{number}"), BUSY, "busy", number)
    table.note(call(), ResponseCode.NO_PERMISSION, "no", 2 * PAUSE_MS)
    table.note(call(), ResponseCode.PULL_NOT_FOUND, None, 2 * PAUSE_MS)  # an answer
    assert table.counts == {(SEND, BUSY): ENTRIES_MAX + 5, (SEND, ResponseCode.NO_PERMISSION): 1}


def test_a_send_of_the_native_path_names_its_topic():
    """Its call has no header; refusals of both paths are counted together."""
    table = RecentRefusals()
    table.note(call("T"), BUSY, "busy", 100, "T")
    native = _call(SimpleNamespace(address="10.0.0.1:5"), 1, 0)
    table.note(native, BUSY, "busy", 200, "T")
    (found,) = table.newest()
    assert (found.subject, found.count) == ("T", 2)


def test_a_refusal_after_a_pause_begins_anew():
    table = RecentRefusals()
    for moment in (0, PAUSE_MS, 2 * PAUSE_MS + 1, 2 * PAUSE_MS + 2):
        table.note(call(), BUSY, "busy", moment)
    (found,) = table.newest()
    assert (found.count, found.first_ms) == (2, 2 * PAUSE_MS + 1)


def test_a_refused_account_is_named():
    """RocketMQ's remark about a missing right says of what, but not of whom."""
    table = RecentRefusals()
    given = call()
    given.ext = {"AccessKey": "guest"}
    refusal = no_permission("topic:T", is_default=True)
    table.note(given, refusal.code, refusal.remark, 1)
    (found,) = table.newest()
    assert plain_remark(found.remark) == "No default permission for topic:T (account guest)"
    table.note(given, refusal.code, wrong_signature("guest").remark, 2)
    found = table.newest()[0]
    assert plain_remark(found.remark) == "Check signature failed for accessKey=guest"
    given.ext = {}
    table.note(given, refusal.code, refusal.remark, 3)
    assert table.newest()[0].remark == refusal.remark


def test_accounts_that_are_refused_the_same_are_counted_apart():
    """Otherwise the newest refusal would hide why the other account was refused."""
    table = RecentRefusals()
    refusal = no_permission("topic:T", is_default=True)
    for moment, account in enumerate(("guest", "shop", "guest")):
        given = call()
        given.ext = {"AccessKey": account}
        table.note(given, refusal.code, refusal.remark, moment)
    found = [(plain_remark(it.remark).partition("(")[2], it.count) for it in table.newest()]
    assert found == [("account guest)", 2), ("account shop)", 1)]


def test_answers_that_refuse_nothing_are_left_out():
    table = RecentRefusals()
    table.note(call(), ResponseCode.PULL_NOT_FOUND, "", 1)
    table.note(call(code=RequestCode.GET_TOPIC_STATS_INFO), ResponseCode.TOPIC_NOT_EXIST, "", 1)
    assert table.newest() == []


def test_the_table_is_bounded_and_forgets_the_oldest():
    table = RecentRefusals()
    for number in range(ENTRIES_MAX + 10):
        table.note(call(f"T{number}" + "x" * 10_000), BUSY, "y" * 10_000, number)
    found = table.newest()
    assert len(found) == ENTRIES_MAX
    assert found[-1].subject.startswith("T10x")
    assert len(found[0].subject) == 255
    assert len(found[0].remark) == REMARK_CHARS_MAX
