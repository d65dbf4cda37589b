# SPDX-License-Identifier: Apache-2.0
"""`cometmq top`: views, sorting, hostile names and sizes; and a run on a real terminal."""

import os
import pty
import re
import select
import subprocess
import time
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from cometmq.cli.operation.top_views import EMPTY, VIEWS, Screen, empty_text, rendered, rows_of
from cometmq.insight.model import (
    Group,
    Member,
    Producer,
    Refusal,
    Snapshot,
    Topic,
    TopicKind,
    Unknown,
)
from cometmq.insight.times import shown
from cometmq.peers.comet import PROGRAM
from cometmq.remoting.names import HALF_TOPIC

NOW_MS = 1_800_000_000_000
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def one_topic(name, rate: Any = 1.0):
    return Topic(name, TopicKind.NORMAL, 6, 4, 4, ("b",), 5, 5, rate, NOW_MS)


def group(name, lag: Any = 0, behind: Any = 0.0, members: Any = ()):
    return Group(
        name, False, 16, True, members, None, None, (), (), lag, behind, 2.0, 0, 0
    )  # fmt: skip


def snapshot(topics: Any = (), groups: Any = (), producers: Any = ()):
    unknown = Unknown("-")
    return Snapshot("n:1", NOW_MS, 5, (), topics, groups, producers, unknown, unknown, unknown)


def names(view, found, *keys, sort=""):
    screen = Screen(view, sort)
    for key in keys:
        screen.press(key)
    return [row[0] for row in rows_of(found, screen)[1]]


def test_rows_are_sorted_and_unknown_figures_come_last():
    found = snapshot([one_topic("a", 1.0), one_topic("b", 9.0), one_topic("c", Unknown("-"))])
    assert names("topics", found) == ["b", "a", "c"]
    assert names("topics", found, "r") == ["a", "b", "c"]
    assert names("topics", found, sort="topic") == ["a", "b", "c"]
    lagging = snapshot(groups=[group("x", 1, 5.0), group("y", 7, 1.0), group("z")])
    assert names("groups", lagging) == ["y", "x", "z"]
    assert names("slowest", lagging) == ["x", "y"]


def test_refused_requests_are_shown_with_their_reason():
    found = msgspec.structs.replace(
        snapshot(),
        refusals=[
            Refusal("b", 310, 2, "busy", "1.2.3.4:5", "orders", 3, NOW_MS - 9_000, NOW_MS),
            Refusal("b", 310, 999, "odd", "1.2.3.4:6", "", 7, NOW_MS - 9_000, NOW_MS),
            Refusal("b", 11, 17, "expected", "1.2.3.4:7", HALF_TOPIC, 7, NOW_MS - 9_000, NOW_MS),
        ],
    )
    columns, (first, second) = rows_of(found, Screen("refused"))
    assert columns[3:] == ("Times", "Last", "Answer", "Broker", "Remark", "What helps")
    assert first[3:-1] == [7, shown(NOW_MS), "999", "b", "odd"]
    assert "send more slowly" in str(second[-1])
    assert second[:-1] == [
        "SEND_MESSAGE_V2 (310)",
        "orders",
        "1.2.3.4:5",
        3,
        shown(NOW_MS),
        "SYSTEM_BUSY",
        "b",
        "busy",
    ]


def test_a_small_terminal_shows_why_requests_were_refused_and_what_helps():
    remark = "[PC_SYNCHRONIZED]broker busy, start flow control for a while, period in queue: 312ms"
    refusal = Refusal("b", 310, 2, remark, "127.0.0.1:48604", "payments", 3, NOW_MS, NOW_MS - 5)
    found = msgspec.structs.replace(snapshot(), refusals=[refusal])
    lines = [ANSI.sub("", it) for it in rendered(found, "", Screen("refused"), 80, 24)]
    row = next(number for number, line in enumerate(lines) if "payments" in line)
    (shown_time,) = re.findall(r" (\S+Z) ", lines[row])
    assert shown_time == str(shown(NOW_MS - 5)).partition("T")[2]  # of the day of the snapshot
    assert all(word in lines[row] for word in ("SEND_MESSAGE", "127.0.0.1:48604", "SYSTEM_BUSY"))
    below = " ".join(line.strip() for line in lines[row + 1 : -1])
    assert remark in below
    assert "look at the disk" in below


def test_keys_choose_views_columns_and_the_end():
    screen = Screen("topics")
    screen.press("\t")
    assert screen.view == "groups"
    screen.press("4")
    assert screen.view == "slowest"
    for _ in VIEWS["slowest"][0]:
        screen.press("s")
    assert screen.sort == "Seconds behind"
    screen.press("9")
    screen.press("\x1b")
    assert not screen.is_over
    screen.press("q")
    assert screen.is_over


def test_connections_are_those_of_consumers_and_producers():
    member = Member("c1", "h:1", "JAVA", 401, ("b",))
    found = snapshot(
        groups=[group("G", members=[member])],
        producers=[Producer("P", "p1", "h:2", "OTHER", 401, ("b",))],
    )
    _, rows = rows_of(found, Screen("connections"))
    assert [row[:3] for row in rows] == [["c1", "consumer", "G"], ["p1", "producer", "P"]]


@pytest.mark.parametrize("size", [(20, 5), (40, 10), (80, 24), (200, 50)])
@pytest.mark.parametrize("view", VIEWS)
def test_no_line_is_wider_than_the_screen_whatever_the_names_are(view, size):
    width, height = size
    evil = ["\x1b[2J\x1b]0;x\x07", "<script>", "日本語" * 30, "\u202eabc", "a\nb\tc", "x" * 500]
    found = snapshot(
        [one_topic(name) for name in evil],
        [group(name, 5, 5.0, [Member(name, name, name, 401, ())]) for name in evil],
    )
    lines = rendered(found, "", Screen(view), width, height)
    assert len(lines) <= height
    plain = [ANSI.sub("", line) for line in lines]
    assert max(map(cell_len, plain)) <= width
    assert not [line for line in plain if re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e]", line)]


def test_ten_thousand_topics_fit_on_a_screen_in_a_moment():
    found = snapshot([one_topic(f"T{number}", float(number)) for number in range(10_000)])
    lines = rendered(found, "", Screen("topics"), 80, 24)
    assert len(lines) == 24
    assert "10,000 rows" in lines[0]
    assert any("T9999" in line for line in lines)


def test_an_outage_is_shown_above_the_last_figures():
    lines = rendered(snapshot(), "no name server answers", Screen("topics"), 100, 10)
    assert "no answer since then: no name server answers" in lines[0]


def test_without_a_terminal_one_table_is_printed(ask, call, topic):
    rows = ask("top", "topics", "--json").json
    assert topic in {row["topic"] for row in rows}
    assert ask("top", "groups").status == 0
    assert call("top", "-n", "127.0.0.1:1").status == 1


def test_on_a_terminal_keys_work_and_the_screen_is_restored(suite):
    master, slave = pty.openpty()
    command = [str(PROGRAM), "top", "-n", suite.namesrv, "--every", "0.5"]
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    output = b""
    keys = [(b"In per s", b"2"), (b"Seconds behind", b"q")]
    deadline = time.monotonic() + 120
    output_comes = select.poll()  # unlike select.select, it takes descriptors above 1,023
    output_comes.register(master, select.POLLIN)
    while time.monotonic() < deadline and child.poll() is None:
        if output_comes.poll(200):
            try:
                output += os.read(master, 65536)
            except OSError:
                break
        if keys and keys[0][0] in output:
            os.write(master, keys.pop(0)[1])
    assert child.wait(60) == 0
    os.close(master)
    assert output.startswith(b"\x1b[?1049h")
    assert b"\x1b[?1049l" in output, "the screen was restored"


def test_rates_and_lag_are_plotted_over_the_looks():
    screen = Screen("groups")
    for lag in (0, 50, Unknown("-"), 100):
        screen.note(snapshot(groups=[group("x", lag)]))
    lines = rendered(snapshot(groups=[group("x", 100)]), "", screen, 120, 20)
    (row,) = [line for line in lines if line.startswith("x ")]
    assert "▁▅ █" in row
    screen.note(snapshot())
    assert screen.with_plots(("Group", "Lag"), [["x", 1]])[1] == [["x", 1, ""]]


def test_every_view_without_rows_says_what_there_is_not():
    assert set(EMPTY) == set(VIEWS)
    assert empty_text(snapshot(), "slowest") == "no group has unread messages"
    unknown = snapshot(groups=Unknown("access denied"), producers=Unknown("old"))
    for view, reason in {"groups": "access denied", "connections": "old", "refused": "-"}.items():
        assert empty_text(unknown, view) == f"the {view} are not known: {reason}"
