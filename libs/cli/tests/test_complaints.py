# SPDX-License-Identifier: Apache-2.0
"""Events of the client's log as sentences on standard error."""

from string import Formatter

from generators import events

from cometmq.cli.complaints import SENTENCES, Complaints


def test_a_consumer_reports_a_lost_broker_once(capsys):
    log = Complaints()
    log.info("consumer.started", group="g")
    for queue_id in range(3):
        place = {"topic": "T", "broker": "b", "queue_id": queue_id, "queue_offset": 7}
        log.warning("pull.failed", group="g", **place, error="ConnectFailed: no connection to b:1")
    log.warning("broker.unreachable", peer="b:1", error="no connection to b:1")
    log.error("offset.unknown", topic="T")
    log.warning("topic.unknown", topic="T", advice="create it")
    log.warning("hook.new_failed", hook="trace", error="ValueError: bad: 1")
    log.warning("hook.new_failed", hook="trace", error="ValueError: bad: 1")
    assert capsys.readouterr().err.splitlines() == [
        "cometmq: queue 0 of T at b cannot be read at offset 7; trying again: no connection to b:1",
        "cometmq: the first offset of a queue of T is not known yet; trying again",
        "cometmq: no broker has the topic T yet: create it",
        "cometmq: hook new failed (hook trace): bad: 1",
    ]


def test_the_sentences_name_events_and_facts_of_the_client():
    listed: dict[str, set[str]] = {}
    for logged in events.all_events():
        listed.setdefault(logged.name, set()).update(logged.facts)
    for event, sentence in SENTENCES.items():
        facts = {name for _, name, _, _ in Formatter().parse(sentence) if name}
        assert facts <= listed[event], event
