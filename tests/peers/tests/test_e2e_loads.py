# SPDX-License-Identifier: Apache-2.0
"""The load of the Java client is recorded line by line, and both loads count as one."""

import sys
from subprocess import PIPE, STDOUT, Popen
from typing import Any

import pytest

from cometmq.peers.e2e.java import JavaLoad, record
from cometmq.peers.e2e.loads import Loads
from cometmq.peers.errors import PeerError
from cometmq.peers.ha.ledger import Ledger, Outage

PLACE = {"queue_id": 2, "queue_offset": 7}
SENT = {"event": "sent", "number": 4, "sender": 1, "began_ns": 10**9, "ended_ns": 2 * 10**9}
# A peer that answers every command as the Java program does; each takes a second of its clock.
ANSWERING = """
import json, sys
def say(**event): print(json.dumps(event, separators=(",", ":")), flush=True)
def times(second): return {"began_ns": second * 10**9 + 1, "ended_ns": second * 10**9 + 2}
print("a line of the client's log", flush=True)
say(event="failed", number=0, sender=1, error="refused", **times(0))
say(event="answer", at_ns=10**9)
for second, _ in enumerate(sys.stdin, 1):
    place = {"queue_id": 0, "queue_offset": second}
    say(event="sent", number=second, sender=0, **times(second), **place)
    say(event="received", number=second, at_ns=second * 10**9 + 3, **place)
    say(event="concurrent", number=second, at_ns=second * 10**9 + 500_000_003)
    say(event="answer", at_ns=(second + 1) * 10**9)
"""


class FakeLoad:
    """Our load, with a clock of its own and one outage."""

    def __init__(self):
        self.time = 100.0
        self.result = {}

    def now(self):
        self.time += 1
        return self.time

    settle = now

    def outage(self, since, until):
        assert since < until
        return Outage(again_s=0.1, pause_s=0.2, failed_count=1)

    def finish(self):
        self.result = {"acknowledged": 5, "failed": 1, "repeated": 0, "faults": [], "errors": ["a"]}


def loads_with(java):
    ours: Any = FakeLoad()
    return Loads(ours, java)


@pytest.fixture
def java():
    command = [sys.executable, "-c", ANSWERING]
    with Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True) as process:
        load = JavaLoad(process)
        assert load.answer() == 1.0
        yield load
        process.kill()


def test_events_are_entered_into_a_ledger():
    ledger = Ledger()
    record(ledger, {**SENT, **PLACE})
    assert ledger.acknowledged[4].began == 1.0
    assert ledger.acknowledged[4].ended == 2.0
    assert ledger.lost() == {4}
    record(ledger, {"event": "received", "number": 4, "at_ns": 3 * 10**9, **PLACE})
    record(ledger, {"event": "concurrent", "number": 4, "at_ns": 4 * 10**9})
    assert ledger.deliveries == {"orderly": {4: 3.0}, "concurrent": {4: 4.0}}
    assert ledger.faults() == []
    record(ledger, {**SENT, "event": "failed", "number": 5, "error": "timeout"})
    assert ledger.failed[5] == (2.0, "timeout")


def test_outages_of_both_loads_count_each_on_its_own_clock(java):
    both = loads_with(java)
    since, until = both.now(), both.settle()
    found = both.outage(since, until)
    assert found.failed_count == 1  # the Java client's failed before `since`
    assert both.java_outages[0].failed_count == 0
    assert java.outage(0.0, 9.0).failed_count == 1
    assert both.java_standstills == pytest.approx([1.0])


def test_results_of_both_loads_are_added(java):
    both = loads_with(java)
    both.finish()
    assert both.result == {
        "acknowledged": 6, "failed": 2, "repeated": 0, "faults": [],
        "errors": ["a", "Java client: refused"],
    }  # fmt: skip
    java.close()


def test_a_client_that_has_ended_is_reported_with_its_output(java):
    java.close()
    with pytest.raises(PeerError, match="a line of the client's log"):
        java.answer()


def test_one_load_alone():
    alone = loads_with(None)
    since = alone.now()
    assert alone.outage(since, alone.settle()).failed_count == 1
    assert (alone.java_outages, alone.java_standstills) == ([], [])
