# SPDX-License-Identifier: Apache-2.0
"""Checks claims in the documents: figures, commands, targets, installations."""

import ast
import functools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page
import pytest
import report
import typer
from macro.workloads import WORKLOADS
from tests.packages.trees import RUNTIME_BYTES_MAX

from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS, app
from cometmq.client import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.runtime.programs import COMMANDS as PROGRAMS

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
BYTES_MAX = 400_000
"""Of all documents, also the generated ones: who adds more, first removes what is repeated."""
CONDITION = r"kill -9|SYNC_FLUSH|SYNC_MASTER"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def commands() -> list[tuple[str, list[str]]]:
    """Return every use of `cometmq` in inline code and console blocks, as (page, words)."""
    found = []
    for name, text in PAGES.items():
        for line in PROGRAM.findall(text):
            if re.match(r"\S+ (is|has|does|looks|speaks)\b", line):
                continue
            try:
                words = shlex.split(line.replace("\\", ""), comments=True)
            except ValueError:  # the quotation continues on the next line
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
    """Return what is wrong with a use of the command, or None."""
    command: Any = typer.main.get_command(app)
    path: list[str] = []
    words = [word for word in words if word != "..."]
    while words:
        word, *words = words
        if word.startswith("-"):
            option = word.partition("=")[0]
            if path and path[0] in PROGRAMS:  # their options are settings
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


def test_all_documents_together_stay_readable() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in TRACKED if (ROOT / name).exists()}
    assert sum(sizes.values()) <= BYTES_MAX


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


def shown_commands() -> Iterator[tuple[str, str]]:
    """Yield every text of the console and of cometmq.insight that is a command, with its module.

    Inserted values are `X`; options in a text that is only appended stand alone. Most commands are
    made by `cometmq.insight.words.command` of a verb, names and options.
    """
    for folder in ("services/console/src", "libs/insight/src"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
            inside = {id(it) for node in joined for it in node.values}
            plain = [it for it in ast.walk(tree) if isinstance(it, ast.Constant)]
            texts = [text_of(node) for node in joined]
            texts += [text_of(it) for it in plain if id(it) not in inside]
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
            texts += [text for call in calls for text in made_commands(call)]
            for text in texts:
                if text.startswith("cometmq ") and "\n" not in text:
                    yield path.name, text.replace(" --X", "")


def text_of(node: ast.AST) -> str:
    """Return a text, with `X` for inserted values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "X"


def made_commands(call: ast.Call) -> Iterator[str]:
    """Yield the command that a call makes, or whose verb it passes on."""
    given = {it.arg: it.value for it in call.keywords}
    if "verb" in given:
        yield f"cometmq {text_of(given['verb'])}"
    if ast.unparse(call.func) != "command" or text_of(call.args[0]) == "X":
        return
    texts = map(text_of, ast.walk(given.get("options", ast.Constant(None))))
    options = [it for it in texts if it.startswith("-") and "X" not in it]
    yield " ".join(["cometmq", text_of(call.args[0]), *("X" for _ in call.args[1:]), *options])


def test_commands_that_the_console_shows_exist() -> None:
    uses = list(shown_commands())
    assert len(uses) > 30, "the search for commands finds them"
    faults = {
        f"{name}: {text}: {wrong}" for name, text in uses if (wrong := fault(text.split()[1:]))
    }
    assert sorted(faults) == []


def test_targets_of_make_that_documents_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))
    named = {
        (name, target)
        for name, text in PAGES.items()
        for target in re.findall(r"(?:`|^|\$ )make ([a-z0-9-]+)", text, flags=re.MULTILINE)
    }
    assert len(named) > 30
    assert sorted(one for one in named if one[1] not in targets) == []


def test_the_readme_tells_how_much_make_run_installs() -> None:
    """tests/packages compares the installed packages and their size with the same facts."""
    told = re.search(r"(\d+) packages, less than (\d+) MB", PAGES["README.md"])
    assert told is not None
    lock = (ROOT / "requirements-runtime.lock").read_text(encoding="utf-8")
    names = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    assert int(told[1]) == len(names - {"colorama"})  # only for Windows
    assert int(told[2]) * 1_000_000 == RUNTIME_BYTES_MAX


def test_promises_of_durability_name_their_conditions() -> None:
    """Acknowledged messages may be lost in a power failure or if the disk is lost."""
    promises = [part for part in PAGES["README.md"].split("\n\n") if "cknowledged" in part]
    assert promises
    for part in promises:
        assert {"kill -9", "SYNC_FLUSH", "SYNC_MASTER"} <= set(re.findall(CONDITION, part)), part


def test_clients_that_cannot_connect_are_not_claimed() -> None:
    """RocketMQ's 5.x clients speak gRPC, which no server of ours supports."""
    any_client = re.compile(r"\b(any|every|all) (RocketMQ|client of RocketMQ)(?! 4)", re.IGNORECASE)
    assert [name for name, text in PAGES.items() if any_client.search(text)] == []
    assert "gRPC" in PAGES["README.md"]


def test_the_lag_demo_has_as_many_groups_as_its_texts_say() -> None:
    groups = (ROOT / "spark/examples/lag_demo/groups.py").read_text(encoding="utf-8")
    count = len(re.findall(r"^    Actor\(", groups, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    texts = [*re.findall(r"^lag-demo:.*", makefile, re.MULTILINE)]
    texts += [PAGES["docs/guides/lag-report.md"]]
    number = re.compile(rf"\b({'|'.join(NUMBERS)}) (?:consumer )?groups", re.IGNORECASE)
    words = [word.lower() for text in texts for word in number.findall(text)]
    assert len(words) > 2
    assert {NUMBERS.index(word) for word in words} == {count}


def test_runbooks_name_commands_where_they_exist() -> None:
    """Runbooks mention the Python admin client only where there is no equivalent command."""
    calls = {name for kind in (AdminClient, BrokerAdmin) for name in dir(kind) if name[0] != "_"}
    named = {
        word
        for name, text in PAGES.items()
        if name.startswith("docs/runbooks/")
        for code in re.findall(r"`([^`\n]+)`", text)
        for word in re.findall(r"\b[a-z]+_[a-z_]+\b", code)
    }
    assert named & calls == {"resume_check"}


def test_tables_of_the_benchmark_are_those_of_the_kept_run() -> None:
    result = report.load(report.BASELINE)
    assert result
    assert page.markdown(result) in PAGES["docs/performance.md"]
    assert page.summary(result) in PAGES["README.md"]


def test_every_workload_of_the_benchmark_is_shown() -> None:
    """The page must include every published workload, including those that Java wins."""
    result = report.load(report.BASELINE)
    assert result
    words = {it.title for it in WORKLOADS if it.name in result["samples"]}
    assert words
    assert [word for word in words if word not in PAGES["docs/performance.md"]] == []
    readme = PAGES["README.md"]
    assert ("| Java |" in readme) is ("worse in 0." not in readme), "the greatest loss is a row"


def test_nothing_is_installed_from_an_index_where_it_is_not() -> None:
    asked = [
        (name, word)
        for name, text in PAGES.items()
        for line in re.findall(r"\b(?:pip|pipx|uv add|uvx)\b[^`\n]*", text)
        if "--no-index" not in line
        for word in re.findall(r"(?<![\w./-])cometmq(?:-[a-z]+)?(?![\w./*-])", line)
    ]
    assert asked == []
