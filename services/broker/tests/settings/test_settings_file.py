# SPDX-License-Identifier: Apache-2.0

import asyncio
from pathlib import Path

import pytest

from cometmq.broker.settings.file import SettingsFile, merge
from cometmq.runtime import properties
from cometmq.runtime.worker import Worker
from cometmq.store.json_config import OsFiles


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a=9\n"),
        ("# head\na=1\nb=2\n", "# head\na=9\nb=2\n"),
        ("b=2", "b=2\na=9\n"),
        ("a : 1\n", "a=9\n"),
        ("a=1\\\n  2\\\n  3\nb=2\n", "a=9\nb=2\n"),
        ("a=1\nb=2\na=3\n", "a=1\nb=2\na=9\n"),
        ("a=1\r\nb=2\r\n", "a=9\nb=2\n"),
        ("b=2\n\n# end\n", "b=2\n\n# end\na=9\n"),
        ("\ufeffa=1\nb=2\n", "a=9\nb=2\n"),
    ],
)
def test_a_key_changes_in_its_place_or_is_added(text: str, expected: str) -> None:
    assert merge(text, {"a": "9"}) == expected
    assert properties.parse(merge(text, {"a": "9"}))["a"] == "9"


def test_several_keys_and_escaped_values() -> None:
    merged = merge("a=1\\\n 1\nb=2\n", {"b": "C:\\x", "a": " lead", "c": "3"})

    assert properties.parse(merged) == {"a": " lead", "b": "C:\\x", "c": "3"}


async def test_the_file_keeps_its_comments_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nbrokerPermission=6\n")
    path.chmod(0o640)
    worker = Worker("settings")

    await SettingsFile(path, worker).save({"brokerPermission": "4"})
    worker.close()

    assert path.read_text() == "# mine\nbrokerPermission=4\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names_in(tmp_path) == ["broker.conf"]


async def test_the_target_of_a_symbolic_link_is_changed(tmp_path: Path) -> None:
    target, link = tmp_path / "kept" / "real.conf", tmp_path / "broker.conf"
    target.parent.mkdir()
    target.write_text("brokerPermission=6\n")
    link.symlink_to("kept/real.conf")
    worker = Worker("settings")

    await SettingsFile(link, worker).save({"brokerPermission": "4"})
    worker.close()

    assert target.read_text() == "brokerPermission=4\n"
    assert link.is_symlink()
    assert names_in(target.parent) == ["real.conf"]


async def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    class FullDisk(OsFiles):
        def write(self, path: Path, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    worker = Worker("settings")

    with pytest.raises(OSError, match="No space"):
        await SettingsFile(path, worker, files=FullDisk()).save({"a": "2"})
    worker.close()

    assert path.read_text() == "a=1\n"


async def test_the_last_value_of_a_burst_stays(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("a=0\nb=0\n")
    worker = Worker("settings")
    file = SettingsFile(path, worker)

    async with asyncio.TaskGroup() as group:
        for value in range(1, 11):
            group.create_task(file.save({"ab"[value % 2]: str(value)}))
    worker.close()

    assert path.read_text() == "a=10\nb=9\n"
