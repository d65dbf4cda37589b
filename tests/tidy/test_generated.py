# SPDX-License-Identifier: Apache-2.0
"""Pages that are derived from the code are up to date, and the code says what they need."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()
DECLARATIONS = {"counter", "gauge", "histogram", "labelled_counter", "labelled_gauge"}


@pytest.fixture(scope="module")
def generators() -> ModuleType:
    import importlib

    sys.path.insert(0, str(ROOT / "docs"))
    try:
        importlib.import_module("generators.events")
        importlib.import_module("generators.settings")
        return importlib.import_module("generators")
    finally:
        sys.path.pop(0)


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, ROOT / "docs/generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_setting_is_described(generators: ModuleType) -> None:
    assert generators.settings.without_description() == []


def test_every_event_that_calls_for_attention_is_explained(generators: ModuleType) -> None:
    assert generators.events.without_meaning() == []


def test_event_names_are_fixed_texts_of_a_noun_and_a_state(generators: ModuleType) -> None:
    names = {event.name for event in generators.events.all_events()}
    assert len(names) > 50, "the search for events finds them"
    assert [name for name in names if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name)] == []


def test_every_declared_metric_is_in_the_catalogue() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    declared: list[str] = []
    for path in [ROOT / name for name in TRACKED if re.fullmatch(r".*/src/.*\.py", name)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in DECLARATIONS:
                first = node.args[0]
                declared += [first.value] if isinstance(first, ast.Constant) else []
    assert len(declared) > 30
    assert [name for name in declared if f"`{name}`" not in page] == []
