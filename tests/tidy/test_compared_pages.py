# SPDX-License-Identifier: Apache-2.0
"""Pages that repeat a table or a list of the code have the same entries.

These tests are here because a change of a page runs only this folder.
"""

import ast
import json
import re
from pathlib import Path

import pytest

from cometmq.cli.main import main
from cometmq.cli.verbs.store import EXIT_STATUS
from cometmq.client import log
from cometmq.peers.paths import ROOT
from cometmq.peers.prometheus.autoscaling import CONSUMERS, FOLDER
from cometmq.runtime.meanings.events import MEANINGS
from cometmq.runtime.meanings.runbooks import RUNBOOKS, runbook_text
from cometmq.spark.lag.output.page import STEPS
from cometmq.store.inspection.verification import StoreState

DOCS = ROOT / "docs"
RUNBOOK_PAGES = sorted((DOCS / "runbooks").glob("*.md"))


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def printed(
    args: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> str:
    """Return what a command prints."""
    monkeypatch.setattr("sys.argv", ["cometmq", *args])
    monkeypatch.setattr("cometmq.cli.programs.commands.yield_processors", lambda: None)
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    return capfd.readouterr().out


def test_help_and_documents_name_each_state_with_its_status(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = [
        printed(["store", "verify", "--help"], monkeypatch, capfd),
        read("guides/cli.md"),
        read("runbooks/store-damaged.md"),
    ]
    for text in shown:
        for state, status in EXIT_STATUS.items():
            assert re.search(rf"\b{status}\b[ |`]+{state.value}\b", text), (state, text)
    assert len(set(EXIT_STATUS.values()) | {1, 2}) == len(StoreState) + 2


def test_the_table_of_runbooks_is_that_of_the_pages() -> None:
    found = {}
    for page in RUNBOOK_PAGES:
        if page.name not in {"README.md", "failures.md"}:
            quoted = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", page.read_text(encoding="utf-8")))
            if events := quoted & MEANINGS.keys():
                found[page.name] = events
    assert {page: set(events) for page, events in RUNBOOKS.items()} == found


def test_each_runbook_is_shipped_and_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for page in RUNBOOK_PAGES:
        text = page.read_text(encoding="utf-8") if page.name != "README.md" else None
        assert runbook_text(page.name) == runbook_text(page.stem) == text
    text = read("runbooks/disk-full.md")
    assert printed(["explain", "disk-full.md"], monkeypatch, capfd) == text
    as_json = json.loads(printed(["explain", "disk-full", "--json"], monkeypatch, capfd))
    assert as_json == [{"runbook": "disk-full", "text": text}]


def test_the_guide_of_clients_names_the_texts_of_events() -> None:
    source = Path(log.__file__).parent
    code = " ".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    table = read("guides/client.md").split("| symptom |")[1].split("\n\n")[0]
    for event in ("listener.failed", "topic.unknown", "namesrv.unreachable"):
        assert event in table
        assert f'"{event}"' in code


def test_the_table_of_clocks_has_a_test_for_each_line() -> None:
    module = ROOT / "services/broker/tests/test_clocks.py"
    (lines,) = (
        it.value
        for it in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(it, ast.AnnAssign) and ast.unparse(it.target) == "LINES"
    )
    assert isinstance(lines, ast.Dict)
    rows = [line for line in read("concepts/clocks.md").splitlines() if line.startswith("| ")]
    names = [ast.literal_eval(key) for key in lines.keys if key is not None]
    assert [row.split("|")[1].strip() for row in rows[1:]] == names


def test_steps_of_lag_reports_are_those_of_the_runbook() -> None:
    page = read("runbooks/lag-report.md")
    rows = re.findall(r"^\| (`[A-Z_]+`.*?) \| (.*?) \|$", page, flags=re.MULTILINE)
    plain = {
        title.replace("`", ""): re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", steps)
        for title, steps in rows
    }
    assert plain == dict(STEPS.values())


def test_the_guide_of_autoscaling_shows_every_file() -> None:
    page = read("guides/autoscaling.md")
    shown = set(re.findall(r"deploy/examples/autoscaling/([\w.-]+)", page))
    assert shown == {path.name for path in FOLDER.iterdir()}
    assert CONSUMERS.name in shown
