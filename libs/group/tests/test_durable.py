# SPDX-License-Identifier: Apache-2.0
"""The replacement of small files; `tests/ha/test_hosts.py` tests it on a full disk."""

import errno
import os
from pathlib import Path

import pytest

from cometmq.ha.durable import RESERVE_BYTES, OsFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def inodes(path: Path) -> set[int]:
    return {one.stat().st_ino for one in path.parent.iterdir()}


def fail_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", fail)


def test_two_files_take_turns_and_keep_their_blocks(path: Path) -> None:
    files = OsFiles()
    files.replace(path, b"0")
    both = inodes(path)
    assert len(both) == 2
    for data in (b"longer", b"2", b"", b"of another length"):
        spare = path.with_name("state.new")
        assert spare.stat().st_blocks * 512 >= RESERVE_BYTES
        next_inode = spare.stat().st_ino
        files.replace(path, data)
        assert path.stat().st_ino == next_inode
        assert files.read(path) == data
        assert inodes(path) == both


def test_names_that_others_have_given_the_content_keep_it(path: Path) -> None:
    files = OsFiles()
    files.replace(path, b"old")
    backup = path.with_name("backup")
    os.link(path, backup)
    for data in (b"new", b"newer", b"newest"):
        files.replace(path, data)
        assert files.read(path) == data
        assert backup.read_bytes() == b"old"


@pytest.mark.parametrize("name", ["state.new", "state.old"])
def test_a_second_name_left_by_a_crash_does_not_expose_the_content(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"old")
    os.link(path, path.with_name(name))
    files = OsFiles()
    fail_writes(monkeypatch)
    with pytest.raises(OSError, match="Input/output"):
        files.replace(path, b"new")
    assert files.read(path) == b"old"
    monkeypatch.undo()
    files.replace(path, b"newer")
    assert files.read(path) == b"newer"
    assert {one.name for one in path.parent.iterdir()} == {"state", "state.new"}


def test_a_file_system_without_hard_links_is_no_obstacle(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    files = OsFiles()
    for data in (b"old", b"new", b"newer"):
        files.replace(path, data)
        assert files.read(path) == data
    assert len(inodes(path)) == 2


def test_a_write_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles()
    files.replace(path, b"old")
    fail_writes(monkeypatch)
    with pytest.raises(OSError, match="Input/output"):
        files.replace(path, b"new")
    assert files.read(path) == b"old"
    monkeypatch.undo()
    files.replace(path, b"newer")
    assert files.read(path) == b"newer"
