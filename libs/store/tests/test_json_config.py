# SPDX-License-Identifier: Apache-2.0
"""Config tables survive crashes, damaged files and failing disks."""

import errno
import json
from pathlib import Path

import pytest

from cometmq.store.errors import CorruptStore
from cometmq.store.json_config import JsonTable, OsFiles


def decode(data: bytes) -> dict[str, int]:
    return json.loads(data)


def encode(value: dict[str, int]) -> bytes:
    return json.dumps(value).encode()


class MemoryFiles(OsFiles):
    """Files in memory that can fail at the n-th operation."""

    def __init__(self) -> None:
        self.content: dict[Path, bytes] = {}
        self.operations: list[str] = []
        self.fail_at: int | None = None

    def _count(self, operation: str) -> None:
        self.operations.append(operation)
        if self.fail_at == len(self.operations):
            raise OSError(errno.ENOSPC, "No space left on device")

    def read(self, path: Path) -> bytes | None:
        return self.content.get(path)

    def write(self, path: Path, data: bytes) -> None:
        self.content[path] = data[: len(data) // 2]  # a possible state after a crash
        self._count(f"write {path.name}")
        self.content[path] = data

    def replace(self, source: Path, target: Path) -> None:
        self._count(f"replace {target.name}")
        self.content[target] = self.content.pop(source)


def table(files: MemoryFiles) -> JsonTable[dict[str, int]]:
    return JsonTable("/config/x.json", decode=decode, encode=encode, files=files)


def test_a_saved_value_is_loaded_again(tmp_path: Path) -> None:
    file = JsonTable(tmp_path / "config" / "x.json", decode=decode, encode=encode)
    file.save({"a": 1})
    file.save({"a": 2})

    assert file.load() == {"a": 2}
    assert file.backup_path.read_bytes() == file.path.read_bytes()
    assert not file.is_restored
    assert sorted(path.name for path in (tmp_path / "config").iterdir()) == [
        "x.json",
        "x.json.bak",
    ]


def test_without_files_there_is_no_value() -> None:
    assert table(MemoryFiles()).load() is None


@pytest.mark.parametrize("damaged", [b"", b"  \n", b'{"a": 1', b"\x00" * 64])
def test_a_damaged_file_gives_way_to_its_backup(damaged: bytes) -> None:
    files = MemoryFiles()
    files.content = {Path("/config/x.json"): damaged, Path("/config/x.json.bak"): b'{"a": 7}'}

    file = table(files)
    assert file.load() == {"a": 7}
    assert file.is_restored


@pytest.mark.parametrize("number", range(3))
def test_a_damaged_file_costs_no_saved_value(number: int) -> None:
    files = MemoryFiles()
    for value in range(number + 1):
        table(files).save({"a": value})
    files.content[Path("/config/x.json")] = b"{"
    assert table(files).load() == {"a": number}


def test_damage_without_a_backup_is_refused_instead_of_starting_empty() -> None:
    files = MemoryFiles()
    files.content = {Path("/config/x.json"): b"{"}

    with pytest.raises(CorruptStore, match=r"x\.json"):
        table(files).load()


def test_a_damaged_file_never_becomes_the_backup() -> None:
    files = MemoryFiles()
    files.content = {Path("/config/x.json"): b"{", Path("/config/x.json.bak"): b'{"a": 7}'}

    table(files).save({"a": 8})

    assert files.content[Path("/config/x.json.bak")] == b'{"a": 8}'
    assert files.content[Path("/config/x.json")] == b'{"a": 8}'


def test_a_save_decodes_nothing_and_restores_both_files() -> None:
    """Decoding a large table would block the loop."""
    files, decoded = MemoryFiles(), []

    def counted(data: bytes) -> dict[str, int]:
        decoded.append(data)
        return decode(data)

    file = JsonTable("/config/x.json", decode=counted, encode=encode, files=files)
    file.save({"a": 4})
    for path in (file.path, file.backup_path):
        files.content[path] = b'{"a": 9}'
        file.save({"a": 4})
        assert files.content[path] == b'{"a": 4}'
    assert decoded == []


@pytest.mark.parametrize("fail_at", range(1, 5))
def test_a_failing_disk_leaves_a_whole_value(fail_at: int) -> None:
    files = MemoryFiles()
    file = table(files)
    file.save({"a": 1})
    file.save({"a": 2})
    files.operations.clear()
    files.fail_at = fail_at

    with pytest.raises(OSError, match="No space"):
        file.save({"a": 3})

    assert file.load() == {"a": 2 if fail_at < 3 else 3}  # the backup comes last
    files.fail_at = None
    file.save({"a": 3})
    assert file.load() == {"a": 3}


def test_an_unchanged_value_costs_no_write() -> None:
    files = MemoryFiles()
    file = table(files)
    file.save({"a": 1})
    files.operations.clear()

    file.save({"a": 1})

    assert files.operations == []


def test_the_disk_says_which_file_it_refuses(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")

    with pytest.raises(OSError, match="file"):
        OsFiles().write(blocked / "x.json", b"{}")
