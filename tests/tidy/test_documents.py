# SPDX-License-Identifier: Apache-2.0
"""Claims of the documents that can be checked: figures, commands, targets, installations."""

import functools
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import page
import pytest
import report
import typer
from macro.workloads import WORKLOADS

from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS, app

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()
GENERATED = "docs/reference/"
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in TRACKED
    if (ROOT / name).exists() and not name.startswith(GENERATED)
}
PROGRAM = re.compile(
    r"(?:^|[`|]\s*|\$ )((?:\.venv/bin/)?(?:cometmq|mqadmin) [^`|;\n]*)", re.MULTILINE
)
PROGRAMS = {"namesrv", "broker", "txn-checker"}
"""Each of their settings is an option; tests of the runtime compare these with the settings."""


def commands() -> list[tuple[str, list[str]]]:
    """Return every use of `cometmq` in inline code and consoles, as page and words."""
    found = []
    for name, text in PAGES.items():
        for line in PROGRAM.findall(text):
            if re.match(r"\S+ (is|has|does|looks|speaks)\b", line):
                continue
            try:
                words = shlex.split(line.replace("\\", ""), comments=True)
            except ValueError:  # a quotation that goes on in the next line
                words = shlex.split(line.replace("\\", "").replace("'", ""), comments=True)
            found.append((name, words[1:]))
    return found


@functools.cache
def options_of(command: Any) -> frozenset[str]:
    return frozenset(
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    ) | {"--help", "-h"}


def fault(words: list[str]) -> str | None:
    """Return the fault of a use of the command, or None."""
    command: Any = typer.main.get_command(app)
    path: list[str] = []
    words = [word for word in words if word != "..."]
    while words:
        word, *words = words
        if word.startswith("-"):
            option = word.partition("=")[0]
            if path and path[0] in PROGRAMS:
                return None
            if not re.fullmatch(r"-\d+", option) and option not in options_of(command):
                return f"{' '.join(path) or 'cometmq'} has no option {option}"
            parameter = next((one for one in command.params if option in one.opts), None)
            if words and parameter is not None and not parameter.is_flag:
                words = words[1:]
        elif not path:
            if not re.fullmatch(r"[a-z][A-Za-z-]+", word):
                return None
            if word not in COMMANDS:
                return f"no command {word}"
            path, command = [word], load_command(word, COMMANDS[word])
        elif len(path) == 1 and hasattr(command, "commands"):
            if not re.fullmatch(r"[a-z]+", word):
                return None
            if word not in command.commands:
                return f"no command {path[0]} {word}"
            path, command = [*path, word], command.commands[word]
    return None


def test_commands_that_documents_name_exist() -> None:
    uses = commands()
    assert len(uses) > 60, "the search for commands finds them"
    faults = {f"{name}: {wrong}" for name, words in uses if (wrong := fault(words))}
    assert sorted(faults) == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("topic list --all", None),
        ("--tls cluster", None),
        ("topics list", "no command topics"),
        ("topic enlarge orders", "no command topic enlarge"),
        ("lag billing --horizontal", "lag has no option --horizontal"),
    ],
)
def test_a_wrong_command_is_found(line: str, wrong: str | None) -> None:
    assert fault(line.split()) == wrong


def test_targets_of_make_that_documents_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    named = {
        (name, target)
        for name, text in PAGES.items()
        for target in re.findall(r"(?:`|^|\$ )make ([a-z-]+)", text, flags=re.MULTILINE)
    }
    assert len(named) > 30
    assert sorted(one for one in named if one[1] not in targets) == []


def test_tables_of_the_benchmark_are_those_of_the_kept_run() -> None:
    result = report.load(report.BASELINE)
    assert result
    assert page.markdown(result) in PAGES["docs/performance.md"]
    assert page.summary(result) in PAGES["README.md"]
    assert all(workload.title in PAGES["README.md"] for workload in WORKLOADS)


def test_nothing_is_installed_from_an_index_where_it_is_not() -> None:
    asked = [
        (name, word)
        for name, text in PAGES.items()
        for line in re.findall(r"\b(?:pip|pipx|uv add|uvx)\b[^`\n]*", text)
        for word in re.findall(r"(?<![\w./-])cometmq(?:-[a-z]+)?(?![\w./*-])", line)
    ]
    assert asked == []
