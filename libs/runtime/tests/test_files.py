# SPDX-License-Identifier: Apache-2.0
"""A file is replaced as a whole, and the previous one is kept."""

import pytest

from cometmq.runtime.files import replace_file


def test_replacing_a_file_keeps_the_previous_one(tmp_path):
    path = tmp_path / "new" / "a.json"
    for data in (b"1", b"2", b"3"):
        replace_file(path, data)
    assert path.read_bytes() == b"3"
    assert path.with_name("a.json.bak").read_bytes() == b"2"
    assert sorted(p.name for p in path.parent.iterdir()) == ["a.json", "a.json.bak"]


def test_uncreatable_folder_raises_os_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        replace_file(tmp_path / "file" / "a.json", b"1")


def test_the_target_of_a_symbolic_link_is_replaced(tmp_path):
    target, link = tmp_path / "kept.json", tmp_path / "a.json"
    target.write_bytes(b"1")
    link.symlink_to(target)
    replace_file(link, b"2")
    assert target.read_bytes() == b"2"
    assert link.is_symlink()
