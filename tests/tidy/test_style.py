# SPDX-License-Identifier: Apache-2.0
"""STYLE.md is short and true, and the commit hook enforces the form that it prescribes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORM = ROOT / "tests/tidy/commit_form.py"
TEXT = (ROOT / "STYLE.md").read_text(encoding="utf-8")
SYMBOL = re.compile(r"[A-Z]\w+|_?[a-z]+(?:_[a-z]+)+")


def test_style_guide_is_short() -> None:
    assert len(TEXT.encode()) <= 8_192


def test_no_module_is_longer_than_the_style_guide_allows() -> None:
    assert "none has more than 500" in TEXT
    listed = subprocess.run(
        ["git", "ls-files", "*/src/*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    written = [ROOT / file for file in listed if not file.endswith("_pb2.py")]
    lengths = {path: path.read_bytes().count(b"\n") for path in written if path.exists()}
    assert len(lengths) > 1000
    assert {path: count for path, count in lengths.items() if count > 500} == {}


def test_style_guide_names_existing_make_targets() -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    )
    named = {name for words in re.findall(r"`make ([a-z -]+)`", TEXT) for name in words.split()}
    assert named
    assert named <= targets


def test_style_guide_names_existing_things() -> None:
    done = subprocess.run(
        ["git", "grep", "-hoE", r"\w+", "--", "*.py", "*.toml", "Makefile"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = set(done.stdout.split())
    quoted = set(re.findall(r"`([^`]+)`", TEXT))
    named = {name for name in quoted if SYMBOL.fullmatch(name)}
    assert len(named) > 20
    assert named - words == set()


def test_comments_name_existing_modules() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    files = {f"/{file}" for file in listed}
    named = {
        (file, name)
        for file in listed
        if (path := ROOT / file).exists()
        for name in re.findall(r"`([\w/]+\.(?:py|rs))`", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert {it for it in named if not any(file.endswith(f"/{it[1]}") for file in files)} == set()


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("Refuse unspecified addresses as advertised ones\n\nA client cannot connect.\n", ""),
        ("fix(client): Speed up pulls\n\nOne copy less.\n", ""),
        ("Fixed the thing\n\nBecause.\n", "imperative"),
        ("perf(store): reading records in one call\n\nBecause.\n", "imperative"),
        ("Fix the thing.\n\nBecause.\n", "full stop"),
        ("Fix the thing\n", "body"),
        ("Fix the thing\nBecause.\n", "not empty"),
        ("F" * 73 + "\n\nBecause.\n", "73 characters"),
        ("# a comment\n", "no subject"),
    ],
)
def test_commit_hook_checks_the_form(tmp_path: Path, message: str, part: str) -> None:
    file = tmp_path / "message"
    file.write_text(message)
    done = subprocess.run([sys.executable, FORM, file], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (part == "")
    assert part in done.stderr
