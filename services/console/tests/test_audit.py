# SPDX-License-Identifier: Apache-2.0
"""The audit log notes each change before it is made, and what became of it."""

import json

import pytest

from cometmq.client.errors import ClientError
from cometmq.console.audit import Audit, AuditEntry, Unaudited
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock

ENTRY = AuditEntry(
    at_ms=1,
    id="1",
    user="ada",
    how="token",
    address="",
    action="topic.create",
    subject="orders",
    outcome="begun",
    after={"queues": 4},
)


@pytest.fixture
def audit(tmp_path):
    audit = Audit(tmp_path / "folder", mib_max=1, clock=SystemClock(), log=NO_LOG)
    yield audit
    audit.close()


def lines(tmp_path):
    found = [json.loads(it) for it in (tmp_path / "folder/audit.log").read_text().splitlines()]
    return [(it["outcome"], it.get("text", ""), it.get("after")) for it in found]


async def test_a_change_is_noted_before_it_is_made_and_with_its_outcome(audit, tmp_path):
    async with audit.noted(ENTRY) as outcome:
        assert lines(tmp_path) == [("begun", "", {"queues": 4})]
        outcome.text = "orders exists now"
    assert lines(tmp_path)[1:] == [("done", "orders exists now", None)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ClientError("the broker refuses"), "the broker refuses"),
        (RuntimeError("a fault"), "the program was stopped, or has a fault"),
    ],
)
async def test_a_change_that_fails_is_noted_with_its_reason(audit, tmp_path, error, text):
    with pytest.raises(type(error)):
        async with audit.noted(ENTRY):
            raise error
    assert lines(tmp_path)[1:] == [("failed", text, None)]


async def test_a_change_that_cannot_be_noted_is_not_made(audit, tmp_path):
    (tmp_path / "folder").write_text("a file in place of the folder")
    with pytest.raises(Unaudited, match="nothing was changed"):
        async with audit.noted(ENTRY):
            pytest.fail("the change was made")


async def test_an_outcome_that_cannot_be_noted_is_told(audit, tmp_path):
    async def change():
        async with audit.noted(ENTRY) as outcome:
            (tmp_path / "folder/audit.log").unlink()
            (tmp_path / "folder/audit.log").mkdir()
            outcome.text = "orders exists now"

    with pytest.raises(Unaudited, match="done: orders exists now; the audit log cannot be written"):
        await change()
