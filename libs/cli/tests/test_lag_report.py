# SPDX-License-Identifier: Apache-2.0
"""`lag --report`: statuses, escaping, and the page of a running suite."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cometmq.cli.consuming.lag_page import age, render
from cometmq.cli.consuming.lag_report import GroupRow, Report, Status, TopicRow, judge
from cometmq.cli.consuming.progress import Progress
from cometmq.remoting.errors import CometError

FINE = {
    "lag": 0, "behind_s": 0.0, "lost": 0, "is_beyond_end": False, "members": 1, "dead_letters": 0,
    "is_complete": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.OK),
        ({"lag": 5, "behind_s": 3.0}, Status.OK),
        ({"members": 0}, Status.OK),
        ({"dead_letters": 1}, Status.DEAD_LETTERS),
        ({"lag": 5, "behind_s": 31.0, "dead_letters": 1}, Status.BEHIND),
        ({"lag": 5, "behind_s": None}, Status.BEHIND),
        ({"lag": 5, "behind_s": 0.1, "members": 0}, Status.STOPPED),
        ({"lag": 5, "is_beyond_end": True, "members": 0}, Status.SKIPS),
        ({"lag": 5, "lost": 2, "members": 0, "is_beyond_end": True}, Status.LOST),
        ({"is_complete": False}, Status.FAILED),
        ({"lag": 5, "behind_s": 31.0, "members": 0, "is_complete": False}, Status.FAILED),
        ({"is_beyond_end": True, "is_complete": False}, Status.SKIPS),
    ],
)
def test_a_group_gets_the_worst_status_that_is_true_of_it(changes, status):
    assert judge(**{**FINE, **changes}) is status


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "unknown"),
        (0.0, "0 s"),
        (1.26, "1.3 s"),
        (61, "1 min 1 s"),
        (7_261, "2 h 1 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_ages_are_in_words(seconds, shown):
    assert age(seconds) == shown


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
    row = GroupRow(bad, Status.STOPPED, lag=3, behind_s=70.0, topics=[TopicRow(bad, 2, 3, 70.0)])
    failed = GroupRow("g", Status.FAILED, error=bad)
    text = render(Report(bad, "2026-11-20T10:00:00Z", [row, failed]))
    page = Page(text)
    assert "script" not in page.tags
    assert page.text.count(bad) == 4
    assert "2 of 2 groups need a look" in page.text
    assert not re.search(r"https?:|url\(|@import", text)


def test_an_empty_cluster_and_a_healthy_one_say_so():
    assert "No consumer group exists." in render(Report("n", "now", []))
    page = Page(render(Report("n", "now", [GroupRow("g", Status.OK)])))
    assert "Every group keeps up." in page.text


def test_missing_brokers_are_named_and_the_figures_are_lower_bounds():
    topics = [TopicRow("T", 2, 0, 0.0), TopicRow("U", 2, 3, None)]
    part = GroupRow("g", Status.FAILED, lag=3, topics=topics, missing_brokers=["<b>", "c"])
    page = Page(render(Report("n", "now", [part, GroupRow("h", Status.OK)], ["<b>", "c"])))
    assert "<b>, c are missing: no answer, or no master. This page lacks the groups" in page.text
    assert "T: nothing unread in 2 queues of the brokers that answered" in page.text
    assert "U: 3 unread in 2 queues of the brokers that answered" in page.text
    assert page.text.count("\N{GREATER-THAN OR EQUAL TO}\N{NO-BREAK SPACE}") == 5
    whole = Page(render(Report("n", "now", [GroupRow("h", Status.OK)], ["b"])))
    assert "Every group on this page keeps up." in whole.text
    none = Page(render(Report("n", "now", [], ["b"])))
    assert "No consumer group is known to the brokers that answered." in none.text


def luminance(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_have_enough_contrast_in_both_schemes():
    text = render(Report("n", "now", []))
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
    assert "the group will skip the 3 messages there" in shown
    assert f"to read them: cometmq group reset {group} {topic} --to first" in shown
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
    assert "cometmq-lag" in page.text

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
    assert "<title>Lag of" in target.read_text()
    target.write_text("mine")
    ask("lag", "--report", link).assert_refused(2, f"Overwrite {link}?")

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        page = pool.submit(pipe.read_text)
        assert ask("lag", "--report", pipe).status == 0
        assert "<title>Lag of" in page.result()
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


def test_a_group_of_unreachable_brokers_gets_a_row(ask, topic, tmp_path, monkeypatch):
    ask("group", "create", f"{topic}-silent")

    async def fail(_progress, groups, _topic):
        return dict.fromkeys(groups, CometError("no connection"))

    monkeypatch.setattr(Progress, "states", fail)
    file = tmp_path / "report.html"
    shown = ask("lag", f"{topic}-silent", "--report", file)
    line = f"cometmq: the figures of the group {topic}-silent are missing: no connection\n"
    assert (shown.status, shown.err) == (1, line)
    assert "no connection" in file.read_text()
