# SPDX-License-Identifier: Apache-2.0
"""Commands to copy, with names that peers have chosen."""

import shlex

import pytest

from cometmq.insight.findings import findings
from cometmq.insight.words import command

from .answers import master, seen


def test_a_command_has_its_names_before_its_options():
    assert command("lag", "billing") == "cometmq lag billing"
    shown = command("group reset", "billing", "Orders", options=("--to", "2026-01-01 00:00"))
    assert shown == "cometmq group reset billing Orders --to '2026-01-01 00:00'"


@pytest.mark.parametrize("name", ["$(id)", "a;b", "a'b", "a b", "`id`", "-n", "--yes", "é"])
def test_a_name_is_one_word_and_no_option(name):
    words = shlex.split(command("group reset", name, "Orders", options=("--to", name)))
    assert words.count(name) == 2
    before = words[: words.index("Orders") - 1]
    assert name.startswith("-") == ("--" in before)
    assert words[-3:] == ["--", name, "Orders"] if "--" in before else words[-2] == "--to"


def test_a_finding_names_a_hostile_group_safely():
    told = master(groups=["$(id)"], offsets={"T@$(id)": {0: 20}}, consumers={})
    (found,) = [it for it in findings(seen(told)) if it.rule == "group-stopped"]
    assert found.command == "cometmq lag '$(id)'"
