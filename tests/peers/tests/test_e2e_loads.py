# SPDX-License-Identifier: Apache-2.0
"""The load of the Java client is recorded line by line, and both loads count as one."""

import sys
from subprocess import PIPE, STDOUT, Popen

import pytest

from cometmq.peers.e2e.java import JavaLoad, record
from cometmq.peers.errors import PeerError
from cometmq.peers.ha.ledger import Ledger

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


def test_a_client_that_has_ended_is_reported_with_its_output(java):
    java.close()
    with pytest.raises(PeerError, match="a line of the client's log"):
        java.answer()
