# SPDX-License-Identifier: Apache-2.0
"""Commands to copy, with names that peers have chosen, and numbers for people."""

import math
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.insight import words
from cometmq.insight.findings import findings
from cometmq.insight.words import command

from .answers import master, seen


def test_a_command_has_its_names_before_its_options():
    assert command("lag", "billing") == "cometmq lag billing"
    shown = command("group reset", "billing", "Orders", options=("--to", "2026-01-01 00:00"))
    assert shown == "cometmq group reset billing Orders --to '2026-01-01 00:00'"


@pytest.mark.parametrize("name", ["$(id)", "a;b", "a'b", "a b", "`id`", "-n", "--yes", "é"])
def test_a_name_is_one_word_and_no_option(name):
    parts = shlex.split(command("group reset", name, "Orders", options=("--to", name)))
    assert parts.count(name) == 2
    before = parts[: parts.index("Orders") - 1]
    assert name.startswith("-") == ("--" in before)
    assert parts[-3:] == ["--", name, "Orders"] if "--" in before else parts[-2] == "--to"


def test_a_finding_names_a_hostile_group_safely():
    told = master(groups=["$(id)"], offsets={"T@$(id)": {0: 20}}, consumers={})
    (found,) = [it for it in findings(seen(told)) if it.rule == "group-stopped"]
    assert found.command == "cometmq lag '$(id)'"


HUGE = 2**63 - 1


@pytest.mark.parametrize(
    ("form", "value", "shown"),
    [
        *((words.short, it, shown) for it, shown in (
            (9_999, "9,999"), (10_000, "10 k"), (999_499, "999 k"), (999_500, "1 M"),
            (999_999_999, "1 G"), (-25_000, "-25 k"), (HUGE, "9.22 E"), (0, "0"),
            (None, words.NOTHING),
        )),
        *((words.lasting, it, shown) for it, shown in (
            (0, "0 s"), (0.0004, "below 1 ms"), (0.3, "300 ms"), (62.5, "1 min 2 s"),
            (3_600, "1 h"), (3_605, "1 h"), (7_800, "2 h 10 min"), (90_061, "1 d 1 h"),
            (-90, "-1 min 30 s"), (1e300, "over 10 years"), (math.inf, words.NOTHING),
        )),
        *((words.rate, it, shown) for it, shown in (
            (0, "0/s"), (0.0001, "below 0.001/s"), (0.25, "0.25/s"), (9.5, "9.5/s"),
            (140.4, "140/s"), (12_345, "12.3 k/s"), (math.nan, words.NOTHING),
        )),
    ],
)  # fmt: skip
def test_numbers_for_people(form, value, shown):
    assert form(value) == shown


@given(st.floats() | st.integers() | st.none())
def test_every_number_is_shown_in_few_letters(value):
    for text in (words.short(value), words.rate(value), words.lasting(value)):
        assert text
        assert not re.search(r"e\+|nan|inf", text)
    assert len(words.lasting(value)) <= 14
