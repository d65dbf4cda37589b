# SPDX-License-Identifier: Apache-2.0
"""`cometmq audit` reads what a console keeps."""

import asyncio

import pytest

from cometmq.console.audit import Audit, AuditEntry
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "console"

    async def fill():
        audit = Audit(folder, mib_max=1, clock=SystemClock(), log=NO_LOG)
        for number, name in enumerate(("orders", "books", "orders")):
            entry = AuditEntry(
                1_700_000_000_000 + number, f"id{number}", "ada", "token", "127.0.0.1",
                "topic.alter", name, "begun", before={"queues": 4}, after={"queues": 8},
            )  # fmt: skip
            async with audit.noted(entry) as outcome:
                outcome.text = f"{name} has 8 queues"
        audit.close()

    asyncio.run(fill())
    return folder


def test_changes_are_listed_newest_first(call, folder):
    found = call("audit", folder, "--json").json
    assert [it["subject"] for it in found] == ["orders", "books", "orders"]
    assert found[0]["at"] == "2023-11-14T22:13:20.002Z"
    assert found[0]["outcome"] == "done"
    assert (found[0]["before"], found[0]["after"]) == ({"queues": 4}, {"queues": 8})
    assert len(call("audit", folder, "--max", 1, "--json").json) == 1
    assert len(call("audit", folder, "--find", "BOOKS alter", "--json").json) == 1
    assert "books has 8 queues" in call("audit", folder).out


def test_a_change_without_an_outcome_is_shown_as_begun(call, folder):
    lines = (folder / "audit.log").read_text().splitlines(keepends=True)
    (folder / "audit.log").write_text("".join(lines[:-1]))
    assert call("audit", folder, "--max", 1, "--json").json[0]["outcome"] == "begun"


def test_other_folders_are_refused(call, tmp_path):
    call("audit", tmp_path).assert_refused(1, f"{tmp_path} has no audit.log")
    assert call("audit", tmp_path / "nowhere").status == 2
