# SPDX-License-Identifier: Apache-2.0
"""The cards of the worst groups say what to do: a command to copy, the runbook, the members."""

import html
import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cometmq.insight.judge import BAD
from cometmq.spark.lag.columns import STATUSES, Report
from cometmq.spark.lag.output.page import anchor, command_for, html_report

from .conftest import NOON, a_row, brokers


def _cards(report: Report) -> list[str]:
    page = html_report(report).decode()
    return re.findall(r"<article.*?</article>", page, flags=re.DOTALL)


def test_every_bad_status_has_steps_in_the_page(report: Report) -> None:
    page = html_report(report).decode()
    for row in report.rows("group"):
        place = anchor(row)
        assert (place is not None) == (row["severity"] in BAD)
        assert place is None or f'id="runbook-{place}"' in page
    links = re.findall(r'href="#(runbook-[^"]+)"', page)
    assert len(links) == 3
    assert all(page.count(f'id="{it}"') == 1 for it in links)


def test_card_has_a_command_to_copy(a_report: Any, a_group: Any) -> None:
    nasty = "CID $(rm -rf /) '"
    groups = [a_group("g", "AT_RISK"), a_group(nasty, "STALLED"), a_group("h", "SLOW")]
    cards = _cards(a_report(groups, broker=brokers()))
    commands = [
        html.unescape(it) for card in cards for it in re.findall("<pre><code>(.*?)</", card)
    ]
    assert commands[0] == "cometmq updateBrokerConfig -b 10.0.0.1:10911 -k fileReservedTime -v 120"
    assert shlex.split(commands[1]) == ["cometmq", "consumerStatus", "-g", nasty, "-s"]
    assert commands[2] == "cometmq lag h"
    assert "user-select: all" in html_report(a_report(groups)).decode()


@pytest.mark.parametrize("status", [name for name in STATUSES if STATUSES[name] in BAD])
def test_commands_exist(status: str, a_group: Any) -> None:
    (broker, _) = brokers()
    words = shlex.split(command_for(a_group("g", status), broker))
    verb = [word for word in words[1:3] if not word.startswith("-") and word != "g"]
    options = {word for word in words if word.startswith("-")}
    program = Path(sys.executable).with_name("cometmq")
    done = subprocess.run(
        [program, *verb, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert all(f"{option}, " in done.stdout for option in options)


def test_card_names_members_and_since_when(a_report: Any, a_group: Any) -> None:
    since = {"since_ts": NOON - timedelta(hours=3), "since_at_least": True}
    groups = [
        a_group("g", "SLOW", members=7, **since),
        a_group("h", "STALLED", since_ts=NOON, since_at_least=False),
        a_group("i", "REWIND", members=None),
    ]
    holders = [
        a_row(
            "holder", cluster="DefaultCluster", group="g", topic="T", broker_name="b",
            client_id=f"10.0.0.{number}@app",
        )
        for number in range(7)
    ]  # fmt: skip
    slow, stalled, rewound = _cards(a_report(groups, holder=holders))
    assert "<dt>members</dt><dd>7</dd>" in slow
    assert "Behind since at least 2026-03-01 09:00:00Z" in slow
    assert "10.0.0.4@app and 2 others" in slow
    assert stalled.count("Behind since 2026-03-01 12:00:00Z") == 1
    assert "<dt>members</dt>" not in rewound


def test_advice_about_a_full_disk_is_to_make_space(a_report: Any, a_group: Any) -> None:
    groups = [a_group("g", "AT_RISK", ttl_model="disk"), a_group("h", "AT_RISK")]
    by_disk, by_time = _cards(a_report(groups, broker=brokers()))
    assert "Make space on the disk" in by_disk
    assert "#runbook-at-risk-by-disk" in by_disk
    assert "updateBrokerConfig" not in by_disk
    assert "raise fileReservedTime" in by_time
