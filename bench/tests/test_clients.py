# SPDX-License-Identifier: Apache-2.0
"""Tests the meter that all client programs share, and the table of results."""

import json
import threading

import pytest
from compare_clients import Figure, cell
from measure import Meter


def test_threads_claim_every_message_once():
    meter = Meter(1000)
    claimed = []

    def work():
        while meter.claim():
            claimed.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(claimed) == 1000


def test_messages_after_the_last_one_change_nothing(capsys):
    meter = Meter(3)
    assert [meter.seen(2), meter.seen(2), meter.seen(2)] == [False, True, False]
    meter.wait_and_show()
    facts = json.loads(capsys.readouterr().out)
    assert facts["messages"] == 3
    assert 0 <= facts["cpu_seconds"] <= facts["seconds"] + 0.1 < 10


def test_messages_that_never_come_are_an_error(monkeypatch):
    monkeypatch.setattr("measure.TIMEOUT_S", 0.01)
    meter = Meter(3)
    meter.seen(2)
    with pytest.raises(SystemExit, match="2 of 3 messages"):
        meter.wait_and_show()


def test_a_cell_shows_the_medians():
    rounds = [Figure(1000.0, 9.0), Figure(3000.0, 20.0), Figure(2000.0, 10.0)]
    assert cell(rounds) == "2,000 | 10"
