# SPDX-License-Identifier: Apache-2.0
"""`report`: its parts from evidence, its page, and a run against a suite."""

import json
from html.parser import HTMLParser

import msgspec
import pytest

from cometmq.cli.operation.diagnosis import report_of
from cometmq.cli.operation.evidence import Evidence, Server, write_bundle
from cometmq.cli.verbs.pages import html
from cometmq.client.admin.figures import BrokerFigures, Load
from cometmq.insight.finding import Finding, Severity
from cometmq.insight.model import (
    Broker,
    BrokerState,
    Disk,
    Group,
    Member,
    Since,
    Snapshot,
    Topic,
    TopicKind,
    Trouble,
    Unknown,
    Unreachable,
)

NOW_MS = 1_800_000_000_000
EVIL = "<script>alert(1)</script>\x1b[2J\u202e"


def broker(name="a", **changes):
    figures = BrokerFigures(
        version="V4_9_4", started_ms=NOW_MS - 7_200_000, incoming=Load(5.0), outgoing=Load(2.0)
    )
    state = BrokerState(figures, Disk(0.5, full_in_s=7_200.0), behind_bytes=3)
    return Broker("c", name, 0, f"{name}:1", msgspec.structs.replace(state, **changes))


def group(name, lag=0, dead=0):
    members = [Member("c", "1.2.3.4:5", "JAVA", 399, ("a",))]
    return Group(name, False, 16, True, members, None, None, (), (), lag, 7.0, 2.0, dead, 0)


def topic(name):
    return Topic(name, TopicKind.NORMAL, 6, 4, 4, ("b",), 5, 5, 1.0, NOW_MS)


def evidence(**changes):
    unknown = Unknown("this broker does not report it")
    gone = Broker("c", "b", 0, "b:1", Unreachable(Trouble.DOWN, "refused", Since(NOW_MS)))
    snapshot = Snapshot(
        "n:1", NOW_MS, 1, (broker(), gone), [topic(EVIL), topic("T")],
        [group("late", lag=5), group("fine"), group("dead", dead=3)], (), unknown, unknown, unknown,
    )  # fmt: skip
    found = Finding(
        rule="broker-down", severity=Severity.CRITICAL, subject="b",
        since=Since(NOW_MS - 60_000, is_bound=True), text="broker b is down", remedy="start it",
        runbook="program-down.md", command="cometmq cluster", page="brokers",
    )  # fmt: skip
    facts = {"taken_ms": NOW_MS, "host": "h", "program": "p", "servers": (), "found": [found]}
    return Evidence(**{**facts, "snapshot": snapshot, **changes})


def parts(found):
    return {it.name: it for it in found.parts}


def test_it_says_what_is_wrong_since_when_and_what_to_do():
    report = report_of(evidence(), "n:1", 10)
    assert report.verdict == "1 critical problem."
    (row,) = parts(report)["findings"].rows
    assert row[:2] == ["critical", "broker b is down"]
    assert row[2].startswith("at least since ")
    assert row[3:] == ["start it", "cometmq cluster", "program-down.md"]


def test_figures_are_those_of_the_cluster():
    found = parts(report_of(evidence(), "n:1", 10))
    alive, gone = found["brokers"].rows
    assert alive == [
        "a:0", "master", "a:1", "V4_9_4", "2 h", 5.0, 2.0, 50.0, "2 h", 3, "answers",
    ]  # fmt: skip
    assert gone[:3] + gone[-1:] == ["b:0", "master", "b:1", "down: refused"]
    assert set(gone[3:-1]) == {None}, "unknown is not 0"
    assert [row[0] for row in found["lag"].rows] == ["late"]
    assert [row[0] for row in found["dead_letters"].rows] == ["dead"]
    assert found["clients"].rows == [["consumer", "JAVA", "V4_9_3", 3]]
    missing = {row[0] for row in found["unknown"].rows}
    assert missing == {"broker b", "half messages", "delayed", "refusals"}


def test_tables_are_short_and_say_what_they_leave_out():
    (part,) = [it for it in report_of(evidence(), "n:1", 1).parts if it.name == "topics"]
    assert (len(part.rows), part.left_out) == (1, 1)
    assert "1 more." in html(report_of(evidence(), "n:1", 1))


def test_a_cluster_that_is_not_reached_is_no_healthy_one():
    server = Server("n:1", "name server", error="refused")
    found = evidence(snapshot=None, failure="no name server answers", servers=[server], found=[])
    report = report_of(found, "n:1", 10)
    assert report.verdict == "The cluster was not reached: no name server answers"
    assert {it.name for it in report.parts} == {"findings", "surroundings"}
    assert report.namesrv == "n:1"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onclick"}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_loads_nothing_and_names_of_strangers_are_texts():
    page = html(report_of(evidence(), "n:1", 10))
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "default-src 'none'" in page


def test_commands_on_the_page_can_be_copied_and_say_which_cluster_they_reach():
    page = html(report_of(evidence(), "n:1;m:2", 10))
    assert "<code>cometmq cluster</code>" in page
    found = report_of(evidence(snapshot=None), "n:1;m:2", 10)
    assert "Commands reach this cluster with <code>-n &#x27;n:1;m:2&#x27;</code>" in html(found)


@pytest.fixture
def behind(ask, topic):
    """Create a group with two unread messages; return its name."""
    for body in "ab":
        assert ask("produce", topic, body).status == 0
    assert ask("group", "create", f"{topic}-late").status == 0
    args = ("reset", f"{topic}-late", topic, "--to", "first", "--yes")
    assert ask("group", *args).status == 0
    return f"{topic}-late"


def test_a_suite_is_reported_in_three_forms(ask, topic, behind, tmp_path):
    found = ask("report", "--top", 10_000, "--json").json
    assert behind in [row["group"] for row in found["lag"]["rows"]]
    (mine,) = [row for row in found["topics"]["rows"] if row["topic"] == topic]
    assert mine["last_message"] is not None
    assert all(row["in_per_s"] is not None for row in found["topics"]["rows"])
    text = ask("report").out
    assert "Brokers" in text
    assert "What is wrong" in text
    file = tmp_path / "cluster.html"
    facts = ask("report", "--out", file, "--top", 10_000).out
    assert str(file) in facts
    assert behind in file.read_text(encoding="utf-8")
    assert ask("report", "--out", file).status == 0, "its own page is replaced"
    file.write_text("mine")
    ask("report", "--out", file).assert_refused(2, f"Overwrite {file}? Standard input")
    assert file.read_text() == "mine"
    assert ask("report", "--out", "-").out.startswith("<!DOCTYPE html>")
    ask("report", "--out", file, "--json").assert_refused(2, "--out writes a page")


def test_a_bundle_is_reported_elsewhere(call, tmp_path):
    bundle = tmp_path / "b.tar.gz"
    write_bundle(bundle, evidence(), ())
    found = call("report", "--from", bundle, "--json").json
    assert found["verdict"] == "1 critical problem."
    assert json.dumps(found).count("at least since") == 1


def test_a_dead_cluster_is_reported_with_status_1(call):
    found = call("report", "-n", "127.0.0.1:1")
    assert found.status == 1
    assert "The cluster was not reached" in found.out


def test_the_doctor_writes_the_page_and_the_archive_and_fails_on_the_given_level(call, tmp_path):
    page, bundle = tmp_path / "p.html", tmp_path / "b.tar.gz"
    dead = ("doctor", "-n", "127.0.0.1:1")
    assert call(*dead, "--html", page, "--bundle", bundle, "--fail-on", "never").status == 0
    assert "was not reached" in page.read_text()
    assert call("doctor", "--from", bundle, "--fail-on", "critical").status == 1
    write_bundle(tmp_path / "c.tar.gz", evidence(found=[]), ())
    found = ("doctor", "--from", tmp_path / "c.tar.gz", "--fail-on")
    assert [call(*found, level).status for level in ("info", "critical")] == [0, 0]
