# SPDX-License-Identifier: Apache-2.0
"""The optional tables `holder` and `filtered` are shown in a useful order, and only if filled."""

from cometmq.insight.words import NOTHING
from cometmq.spark.lag.output.page import html_report
from cometmq.spark.lag.output.sections import Section, all_sections

from .conftest import NOON, a_group, a_report, a_row

PLACE = {"cluster": "c", "group": "G", "topic": "T"}


def sections_of(**tables: list[dict[str, object]]) -> dict[str, Section]:
    report = a_report([a_group("G", "STALLED")], **tables)
    assert b"STALLED" in html_report(report)
    return {section.title: section for section in all_sections(report)}


def test_empty_sections_are_omitted() -> None:
    assert not {"Groups with a filter", "Who reads these queues"} & sections_of().keys()


def test_queue_without_reader_comes_first() -> None:
    held = a_row(
        "holder", **PLACE, broker_name="b", queue_id=0, lag=900, client_id="m@1",
        cached_count=12, last_consume_ts=NOON,
    )  # fmt: skip
    free = a_row("holder", **PLACE, broker_name="b", queue_id=1, lag=5)
    section = sections_of(holder=[held, free])["Who reads these queues"]
    first, second = section.rows
    assert first[3:] == ["1", "nobody", "5", NOTHING, NOTHING]
    assert second[3:] == ["0", "m@1", "900", "12", "2026-03-01 12:00:00Z"]


def test_filter_has_an_estimate_if_messages_were_sampled() -> None:
    tried = a_row(
        "filtered", **PLACE, expression="a || b", lag=120_000, tried=200, matched=50,
        lag_matching=30_000, lag_low=23_400, lag_high=37_600,
    )  # fmt: skip
    unknown = a_row("filtered", **PLACE | {"topic": "U"}, lag=7)
    section = sections_of(filtered=[tried, unknown])["Groups with a filter"]
    first, second = section.rows
    assert first[2:] == ["a || b", "≤ 120,000", "200", "about 30 k (23.4 k to 37.6 k)"]
    assert second[2:] == [NOTHING, "≤ 7", NOTHING, NOTHING]
