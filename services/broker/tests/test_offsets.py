# SPDX-License-Identifier: Apache-2.0
"""Committed offsets in memory and in consumerOffset.json."""

from pathlib import Path

from cometmq.broker.offsets import Offsets, offset_file


def test_the_last_commit_wins_also_backwards() -> None:
    offsets = Offsets()
    offsets.commit("g", "t", 3, 10)
    offsets.commit("g", "t", 3, 4)

    assert offsets.committed("g", "t", 3) == 4
    assert offsets.committed("g", "t", 0) is None
    assert offsets.committed("other", "t", 3) is None


def test_groups_and_topics_find_each_other() -> None:
    offsets = Offsets()
    offsets.commit("g1", "t1", 0, 1)
    offsets.commit("g1", "%RETRY%g1", 0, 1)
    offsets.commit("g2", "t1", 0, 1)

    assert offsets.topics_of("g1") == {"t1", "%RETRY%g1"}
    assert offsets.groups_of("t1") == {"g1", "g2"}
    assert offsets.queues("g1", "t1") == {0: 1}

    offsets.drop_group("g1")

    assert offsets.topics_of("g1") == set()
    assert offsets.committed("g2", "t1", 0) == 1


def test_the_file_is_strict_json_and_java_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b'{\n\t"offsetTable":{"t@g":{0:12,1:3\n\t\t},"odd":{0:1}\n\t}\n}')
    file = offset_file(str(path))
    offsets = Offsets(file)

    assert offsets.committed("g", "t", 1) == 3
    offsets.commit("g", "t", 2, 9)
    assert offsets.is_dirty
    file.save(offsets.snapshot())

    assert not offsets.is_dirty
    assert path.read_bytes() == b'{"offsetTable":{"t@g":{"0":12,"1":3,"2":9},"odd":{"0":1}}}'
