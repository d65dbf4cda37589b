# SPDX-License-Identifier: Apache-2.0
"""`lag --report`: statuses, escaping, and the page of a running suite."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from cometmq.cli.consuming import lag_report
from cometmq.cli.consuming.lag_report import GroupRow, LagReport, report_of
from cometmq.cli.verbs.pages import html
from cometmq.insight.judge import Status
from cometmq.insight.model import Group, GroupTopic, Snapshot, Unknown, known
from cometmq.insight.snapshot import look
from cometmq.remoting.errors import CometError

NOT_ASKED = Unknown("not asked")


def report(*rows, missing=()):
    groups = [it.group for it in rows]
    others = (NOT_ASKED, NOT_ASKED, NOT_ASKED, NOT_ASKED)
    return html(report_of(LagReport(Snapshot("n:1", 1, 1, (), (), groups, *others), rows, missing)))


def row(name, status=Status.OK, missing=(), lag=0, topics=()):
    group = Group(name, False, 16, True, (), None, None, (), topics, lag, 0.0, 0.0, 0, 0)
    return GroupRow(group, status, missing)


class Page(HTMLParser):
    """Checks that a page is well formed and loads nothing; collects tags and text."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = set(), ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert {"src", "href", "onclick", "onload"}.isdisjoint(dict(attrs))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_names_are_escaped_and_nothing_is_loaded():
    bad = '<script>alert("x")</script>&amp;'
    topics = [GroupTopic(bad, 2, 0, 3, 70.0)]
    late = row(bad, Status.STOPPED, lag=3, topics=topics)
    text = report(late, row("g", Status.UNKNOWN))
    page = Page(text)
    assert "script" not in page.tags
    assert page.text.count(bad) >= 2
    assert "2 of 2 groups need a look" in page.text
    assert not re.search(r"https?:|url\(|@import", text)


def test_an_empty_cluster_and_a_healthy_one_say_so():
    assert "No consumer group exists." in report()
    assert "Every group keeps up." in Page(report(row("g"))).text


def test_missing_brokers_are_named_and_the_figures_are_lower_bounds():
    topics = [GroupTopic("T", 2, 0, 0, 0.0), GroupTopic("U", 2, 0, 3, Unknown("-"))]
    missing = ["<b>", "c"]
    part = row("g", Status.UNKNOWN, missing, lag=3, topics=topics)
    page = Page(report(part, row("h"), missing=missing))
    assert "<b>, c are missing: no answer, or no master. This page lacks the groups" in page.text
    assert "T: nothing unread in 2 queues" in page.text
    assert "U: 3 unread in 2 queues, the oldest for unknown" in page.text
    assert page.text.count("at least 3") == 1
    whole = Page(report(row("h"), missing=["b"]))
    assert "Every group on this page keeps up." in whole.text
    assert "No consumer group known to the brokers that answered." in Page(report(missing="b")).text


def luminance(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_have_enough_contrast_in_both_schemes():
    text = report()
    schemes = [
        dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in text.split("@media (prefers")
    ]
    assert [len(scheme) for scheme in schemes] == [9, 9]
    for scheme in schemes:
        page = luminance(scheme["page"])
        for name in set(scheme) - {"page", "line"}:
            light, dark = sorted((luminance(scheme[name]), page), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, name


def test_a_group_that_will_skip_messages_is_shown_with_their_number_and_the_remedy(
    ask, topic, tmp_path
):
    group, file = f"{topic}-beyond", tmp_path / "report.html"
    ask("produce", topic, *range(10), "--in-flight", 1)
    assert ask("consume", topic, "-g", group, "--from", "first", "--max", 10).status == 0
    assert ask("topic", "delete", topic, "--yes").status == 0
    assert ask("topic", "create", topic, "--queues", 1).status == 0
    ask("produce", topic, 1, 2, 3, "--in-flight", 1)
    assert ask("lag", group, "--report", file).status == 0
    shown = Page(file.read_text()).text
    assert "skips" in shown
    assert f"{group} will skip 3 messages of {topic}" in shown
    assert f"cometmq group reset {group} {topic} --to first" in shown
    critical = ask("check", "group", group)
    assert critical.status == 2
    assert "will skip 3 messages" in critical.out


def test_the_report_of_a_running_suite(ask, topic, tmp_path):
    ask("produce", topic, *range(10), "--in-flight", 1)
    group = f"{topic}-late"
    args = ("-g", group, "--from", "first", "--timeout", 60)
    assert ask("consume", topic, "--max", 4, *args).status == 0
    file = tmp_path / "report.html"
    shown = ask("lag", "--report", file, "--json").json
    assert shown["report"] == str(file)
    assert shown["need_a_look"] >= 1
    assert shown["missing_brokers"] == []
    assert {tuple(row["missing_brokers"]) for row in ask("lag", "--json").json} == {()}
    assert "Missing brokers" not in ask("lag").out
    page = Page(file.read_text())
    assert group in page.text
    assert f"{topic}: 6 unread in 2 queues" in page.text
    assert "stopped" in page.text

    only = tmp_path / "one.html"
    assert ask("lag", group, "--report", only).status == 0
    assert "1 of 1 group needs a look" in only.read_text()
    assert ask("lag", group, "--report", only).status == 0  # a report may replace a report
    other = tmp_path / "notes.html"
    other.write_text("mine")
    asked = ask("lag", group, "--report", other)
    asked.assert_refused(2, f"Overwrite {other}? Standard input is not a terminal: give --yes")
    assert other.read_text() == "mine"
    assert ask("lag", group, "--report", other, "--yes").status == 0
    assert "needs a look" in other.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_report_never_replaces_a_link_a_pipe_or_a_device(ask, tmp_path):
    target, link = tmp_path / "target.html", tmp_path / "link.html"
    link.symlink_to(target)
    assert ask("lag", "--report", link).status == 0
    assert link.is_symlink()
    assert "<title>Consumer groups" in target.read_text()
    target.write_text("mine")
    ask("lag", "--report", link).assert_refused(2, f"Overwrite {link}?")

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        page = pool.submit(pipe.read_text)
        assert ask("lag", "--report", pipe).status == 0
        assert "<title>Consumer groups" in page.result()
    assert pipe.is_fifo()

    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    ask("lag", "--report", full).assert_refused(1, f"{full} cannot be written: No space left")
    assert Path("/dev/full").is_char_device()


def test_a_report_on_standard_output_is_nothing_but_the_page(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = ask("lag", "--report", "-").out
    assert shown.startswith("<!")
    assert shown.rstrip().endswith("</html>")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_one_line(ask, tmp_path):
    result = ask("lag", "--report", tmp_path / "no" / "report.html")
    result.assert_refused(1, f"{tmp_path}/no/report.html cannot be written: No such file")


def test_a_group_whose_queues_cannot_be_read_gets_a_row(ask, topic, tmp_path, monkeypatch):
    group = f"{topic}-silent"
    ask("produce", topic, 1)
    assert ask("group", "create", group).status == 0
    assert ask("group", "reset", group, topic, "--to", "first", "--yes").status == 0

    async def fail(*_):
        raise CometError("no connection")

    monkeypatch.setattr(lag_report, "queue_states", fail)
    monkeypatch.setattr(lag_report, "look", unaged)
    file = tmp_path / "report.html"
    shown = ask("lag", group, "--report", file)
    line = f"cometmq: the figures of the group {group} are missing: no connection\n"
    assert (shown.status, shown.err) == (1, line)
    assert "no connection" in file.read_text()


async def unaged(admin):
    """Take a snapshot that has no ages, as of brokers of RocketMQ."""
    found = await look(admin)
    groups = [msgspec.structs.replace(it, behind_s=Unknown("-")) for it in known(found.groups)]
    return msgspec.structs.replace(found, groups=groups)
