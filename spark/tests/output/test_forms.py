# SPDX-License-Identifier: Apache-2.0
"""The output forms of a report have the expected content and are deterministic."""

import json
import re
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cometmq.spark.lag.columns import REPORT_TABLES, STATUSES, Report
from cometmq.spark.lag.output.findings import findings, verdict
from cometmq.spark.lag.output.forms import (
    FORMS,
    SCHEMA_PATH,
    json_report,
    json_schema,
    write_report,
    write_textfile,
)
from cometmq.spark.lag.output.page import html_report


@pytest.mark.parametrize("form", FORMS)
def test_same_report_gives_same_bytes(form: str, report: Report) -> None:
    assert FORMS[form](report) == FORMS[form](report)


def test_every_status_has_words_and_a_meaning(report: Report) -> None:
    by_status = {found.row["status"]: found for found in findings(report)}
    assert by_status.keys() == STATUSES.keys()
    assert all(found.why.endswith(".") for found in by_status.values())
    assert {status for status, found in by_status.items() if not found.advice} == {
        "CATCHING_UP", "UNKNOWN", "BROADCAST", "OK",
    }  # fmt: skip


def test_explanation_contains_its_figures(report: Report) -> None:
    why = {found.row["status"]: found.why for found in findings(report)}
    assert why["LOST"].startswith("12,400 messages were deleted before they were read")
    assert "in 2 h 10 min" in why["AT_RISK"]
    assert "it reads 80/s while 120/s arrive" in why["AT_RISK"]
    assert "9.5/s more arrive" in why["STOPPED"]
    assert "Behind since 2026-03-01 03:00:00Z" in why["STOPPED"]
    assert "1 min 2 s" in why["CATCHING_UP"]


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ([], "No consumer group was seen."),
        (["OK"], "The only group is well."),
        (["OK", "BROADCAST"], "All 2 groups are well."),
        (["SLOW", "OK"], "1 of 2 groups need a look; no unread data is in danger."),
        (["LOST", "OK"], "1 group of 2 loses unread data or will soon."),
        (
            ["LOST", "AT_RISK", "SLOW"],
            "2 groups of 3 lose unread data or will soon; 1 more need a look.",
        ),
    ],
)
def test_verdict_is_one_sentence(
    statuses: list[str], words: str, a_report: Any, a_group: Any
) -> None:
    groups = [a_group(f"g{index}", status) for index, status in enumerate(statuses)]
    assert verdict(a_report(groups)) == words


class Page(HTMLParser):
    """Collects the elements of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_self_contained_and_without_scripts(report: Report) -> None:
    text = html_report(report).decode()
    page = Page(text)
    assert not page.open
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    targets = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert all(target and target.startswith("#") for target in targets)
    assert not re.search(r"url\((?!#)|@import", text)
    assert page.tags.count("svg") == 3 + 4  # the worst groups, and four curves in the table


def test_ids_on_the_page_are_unique(report: Report) -> None:
    text = html_report(report).decode()
    drawn: dict[str, str] = {}
    for match in re.finditer(r'<(\w+) id="([^"]+)"(.*?)(?:/>|</\1>)', text, flags=re.DOTALL):
        assert drawn.setdefault(match[2], match[3]) == match[3]
    used = re.findall(r'(?:url\(#|href="#)([^")]+)', text)
    assert used
    assert set(used) <= drawn.keys()


def test_worst_groups_come_first(report: Report) -> None:
    text = html_report(report).decode()
    cards = re.findall(r'<article class="card (\w+)">\s*<h3>([\w-]+)', text)
    assert cards == [("critical", "g-lost"), ("critical", "g-at_risk"), ("error", "g-rewind")]


def test_names_are_escaped(report: Report, a_report: Any, a_group: Any) -> None:
    nasty = "%RETRY%a|b_<script>alert(1)</script>&\"'"
    groups = [a_group(nasty, "STALLED", worst_topic=nasty)]
    strange = Report(report.header, report.tables | a_report(groups).tables)
    page = html_report(strange).decode()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_report_without_groups_is_a_valid_page(a_report: Any) -> None:
    empty = a_report([])
    assert "No consumer group was seen" in html_report(empty).decode()
    assert json.loads(json_report(empty))["group"] == []


@pytest.mark.parametrize(("minutes", "drawings"), [([0, 10], 2), ([0, 0], 0), ([0], 0)])
def test_curve_needs_two_points_but_no_lag(
    minutes: list[int], drawings: int, a_report: Any, a_group: Any
) -> None:
    when = a_report([]).header.snapshot_ts
    rows = [
        {"cluster": "DefaultCluster", "group": "g", "ts": when + timedelta(minutes=minute)}
        | {"lag": 0, "max_offset": 0, "consumer_offset": 0}
        for minute in minutes
    ]
    page = html_report(a_report([a_group("g", "STALLED")], history=rows)).decode()
    assert page.count("<svg") == drawings


def test_long_lists_are_cut_with_a_note(a_report: Any, a_group: Any) -> None:
    report = a_report([a_group(f"g{index:04}", "STALLED") for index in range(600)])
    assert "100 more groups are in report.json" in html_report(report).decode()
    assert len(json.loads(json_report(report))["group"]) == 600


@pytest.fixture(scope="module")
def checker() -> jsonschema.Draft202012Validator:
    """Return a validator that uses the schema file, as a program that reads reports would."""
    schema = json.loads(SCHEMA_PATH.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time", raises=ValueError)(
        lambda text: not isinstance(text, str) or bool(datetime.fromisoformat(text))
    )
    return jsonschema.Draft202012Validator(schema, format_checker=formats)


def test_json_conforms_to_its_schema(
    report: Report, checker: jsonschema.Draft202012Validator
) -> None:
    document = json.loads(json_report(report))
    checker.validate(document)
    assert document.keys() == {"schema_version", "header", *REPORT_TABLES}
    assert document["header"]["snapshot_ts"] == "2026-03-01T12:00:00.000Z"
    assert document["queue"][0]["lag_time_s"] == 4000.25


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("group", 0, "status"), "FINE"),
        (("group", 0, "severity"), None),
        (("group", 0, "since_ts"), "yesterday"),
        (("group", 0, "lag_sum"), "12"),
        (("queue", 0, "queue_id"), 1.5),
        (("queue", 0, "ttl_model"), "luck"),
        (("queue", 0, "filtered"), 1),
        (("header", "coverage"), "all"),
        (("header", "snapshot_ts"), "yesterday"),
        (("schema_version",), 999),
    ],
)
def test_schema_rejects_invalid_reports(
    place: tuple[Any, ...], value: Any, report: Report, checker: jsonschema.Draft202012Validator
) -> None:
    document = json.loads(json_report(report))
    *outer, name = place
    one = document
    for key in outer:
        one = one[key]
    one[name] = value
    assert {tuple(error.absolute_path) for error in checker.iter_errors(document)} == {place}
    del one[name]
    (error,) = checker.iter_errors(document)
    assert repr(name) in error.message


def test_schema_file_is_current() -> None:
    assert SCHEMA_PATH.read_bytes() == json_schema(), "run make generate"


def test_json_contains_neither_nan_nor_infinity(a_report: Any, a_group: Any) -> None:
    report = a_report([a_group("g", "SLOW", rate_in=float("nan"), rate_out=float("inf"))])
    group = json.loads(json_report(report))["group"][0]
    assert group["rate_in"] is None
    assert group["rate_out"] is None


def test_files_are_replaced_atomically(tmp_path: Path, report: Report) -> None:
    (tmp_path / "report.json").write_text("what was there")
    paths = [*write_report(report, tmp_path), write_textfile(report, tmp_path)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert (tmp_path / "report.json").read_bytes() == json_report(report)
