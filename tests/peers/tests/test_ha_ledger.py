# SPDX-License-Identifier: Apache-2.0
"""The checks of the fault tests detect each kind of violated guarantee."""

from random import Random

import pytest

from cometmq.peers.ha.copies import judge_logs
from cometmq.peers.ha.faults import DECKS, FAULTS, draw
from cometmq.peers.ha.ledger import CONCURRENT, ORDERLY, Acknowledged, Ledger, Outage
from cometmq.peers.ha.report import Outages


def a_ledger(*sent: tuple[int, int]) -> Ledger:
    """Return the ledger of one sender whose messages, given as (number, offset), are in queue 0."""
    ledger = Ledger()
    for number, offset in sent:
        ledger.senders[number] = 0
        ledger.acknowledged[number] = Acknowledged(number, number + 0.5, (0, offset))
    return ledger


def test_a_clean_ledger_has_no_fault_though_messages_are_repeated():
    ledger = a_ledger((1, 0), (2, 2))
    for place, number in (((0, 0), 1), ((0, 1), 1), ((0, 0), 1), ((0, 2), 2)):
        ledger.receive(place, number)
    assert (ledger.faults(), ledger.repeated_count) == ([], 1)


@pytest.mark.parametrize(
    ("sent", "deliveries", "words"),
    [
        ([(1, 0)], [], "1 is lost"),
        ([(1, 0)], [(0, 2), (1, 1)], "where 2 is"),
        ([(1, 0)], [(0, 1), (0, 2)], "held 1, and later 2"),
        ([(1, 1)], [(1, 1), (0, 2)], "came after 1"),
        ([(1, 1), (2, 0)], [(0, 2), (1, 1)], "before an earlier message"),
        ([], [], "no message was acknowledged"),
    ],
)
def test_a_broken_promise_is_named(sent, deliveries, words):
    ledger = a_ledger(*sent)
    for offset, number in deliveries:
        ledger.receive((0, offset), number)
    assert words in " ".join(ledger.faults())


def test_an_outage_ends_with_a_send_that_began_after_the_fault():
    ledger = Ledger()
    for number, (began, ended) in enumerate([(9.9, 10.1), (10.2, 14.1), (14.1, 14.2)]):
        ledger.acknowledged[number] = Acknowledged(began, ended, (0, number))
    ledger.failed = {7: (9.0, "before"), 8: (12.0, "during")}
    outage = ledger.outage(10.0, 15.0)
    assert outage is not None
    assert outage == pytest.approx(Outage(4.1, 4.0, 1))
    assert ledger.outage(14.15, 15.0) is None


def test_a_consumer_stands_still_although_it_receives_other_messages():
    ledger = a_ledger(*((number, number) for number in range(1, 10)))
    for number in range(1, 10):
        ledger.receive((0, number), number, at=number + 0.6)
        if number != 4:
            ledger.note_delivery(CONCURRENT, number, number + 0.6)
    assert ledger.standstill(ORDERLY, 2.0, 10.0) == pytest.approx(1.0)
    assert ledger.has_caught_up(4.0)
    assert not ledger.has_caught_up(10.0)
    assert ledger.standstill(CONCURRENT, 2.0, 10.0) == pytest.approx(5.5)  # it still waits
    ledger.note_delivery(CONCURRENT, 4, 9.9)
    assert ledger.has_caught_up(10.0)
    assert ledger.standstill(CONCURRENT, 2.0, 10.0) == pytest.approx(5.4)


def test_a_copy_that_differs_or_ends_early_is_named(tmp_path):
    stores = [tmp_path / name for name in "ab"]
    for store, log in zip(stores, (bytes(9), bytes(5)), strict=True):
        (store / "commitlog").mkdir(parents=True)
        (store / "commitlog" / f"{0:020}").write_bytes(log)
    assert judge_logs(stores, 5) == []
    assert judge_logs(stores, 9) == [
        f"{stores[1]} has 5 of 9 confirmed bytes",
        f"{stores[0]} and {stores[1]} differ at 5",
    ]
    (stores[1] / "commitlog" / f"{0:020}").write_bytes(bytes(8) + b"\x01")
    assert judge_logs(stores, 9) == [f"{stores[0]} and {stores[1]} differ at 8"]


def test_every_round_of_faults_has_every_kind():
    drawn = draw(2 * len(DECKS["all"]), Random(1))
    first, second = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    assert sorted(first) == sorted(second) == sorted(DECKS["all"])
    assert set(first) == set(FAULTS)


def test_the_report_has_distributions_and_goals():
    outages = Outages()
    outages.add("Java", "kill -9 of the master", Outage(1.0, 1.25, 2))
    outages.add("Java", "planned switchover", Outage(0.1, 0.6, 0))
    assert outages.table()[2] == (
        "| Java | kill -9 of the master | 1 | 1.00 | 1.00 | 1.00 | 1.00"
        " | 1.25 | 1.25 | 1.25 | 1.25 | 2 |"
    )
    assert [line.split(" | ")[1:3] + line.split(" | ")[-2:] for line in outages.goals()[2:]] == [
        ["again after kill -9 of the master", "1", "p95 at most 2 s", "met |"],
        ["pause of a switchover", "1", "p99 at most 0.5 s", "missed |"],
        ["failed sends of a switchover", "1", "max at most 0", "met |"],
    ]
    total = Outages()
    total.add_all(outages)
    assert (total.again("Java"), total.failed_count("Java", "planned switchover")) == ([1, 0.1], 0)
