# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import msgspec
import pytest

from cometmq.broker.tables.offsets import Offsets, offset_file
from cometmq.remoting.bodies.large import PART_ENTRIES
from cometmq.remoting.errors import SystemBusy
from cometmq.runtime.incremental import finish


def test_groups_and_topics_are_indexed() -> None:
    offsets = Offsets()
    offsets.commit("g1", "t1", 0, 1)
    offsets.commit("g1", "%RETRY%g1", 0, 1)
    offsets.commit("g2", "t1", 0, 1)

    assert offsets.index.topics_of("g1") == {"t1", "%RETRY%g1"}
    assert offsets.index.groups_of("t1") == {"g1", "g2"}
    assert offsets.queues("g1", "t1") == {0: 1}

    offsets.drop_group("g1")

    assert offsets.index.topics_of("g1") == set()
    assert offsets.committed("g2", "t1", 0) == 1


def test_the_index_follows_loads_clones_and_deletions(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b'{"offsetTable":{"t@g":{"0":1},"odd":{"0":1},"x@y@z":{"0":1}}}')
    offsets = Offsets(offset_file(str(path)))
    assert (offsets.index.topics_of("g"), offsets.index.groups_of("t")) == ({"t"}, {"g"})
    assert offsets.index.groups_of("x") == set()
    offsets.clone("g", "h", "t")
    assert (offsets.index.topics_of("h"), offsets.index.groups_of("t")) == ({"t"}, {"g", "h"})
    offsets.drop_group("g")
    offsets.drop_group("h")
    assert (offsets.index.topics_of("h"), offsets.index.groups_of("t")) == (set(), set())


def test_commits_during_a_save_make_the_table_dirty_again() -> None:
    offsets = Offsets()
    for number in range(PART_ENTRIES + 1):
        offsets.commit("g", f"t{number}", 0, 1)
    parts = offsets.encode_for_file()
    next(parts)
    assert not offsets.is_dirty
    offsets.commit("g", "t0", 0, 2)
    assert b'"t0@g":{"0":1}' in finish(parts)
    assert offsets.is_dirty
    assert b'"t0@g":{"0":2}' in finish(offsets.encode_for_file())
    assert not offsets.is_dirty


def test_offsets_stay_dirty_when_encoding_is_cancelled() -> None:
    offsets = Offsets()
    for number in range(PART_ENTRIES + 1):
        offsets.commit("g", f"t{number}", 0, 1)
    parts = offsets.encode_for_file()
    next(parts)
    parts.close()
    assert offsets.is_dirty


def test_the_file_is_strict_json_and_java_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b'{\n\t"offsetTable":{"t@g":{0:12,1:3\n\t\t},"odd":{0:1}\n\t}\n}')
    file = offset_file(str(path))
    offsets = Offsets(file)

    assert offsets.committed("g", "t", 1) == 3
    offsets.commit("g", "t", 2, 9)
    assert offsets.is_dirty
    file.write(finish(offsets.encode_for_file()))

    assert not offsets.is_dirty
    assert path.read_bytes() == b'{"offsetTable":{"t@g":{"0":12,"1":3,"2":9},"odd":{"0":1}}}'


def test_an_unchanged_commit_is_not_saved() -> None:
    offsets = Offsets()
    offsets.commit("G", "T", 0, 5)
    assert offsets.is_dirty
    finish(offsets.encode_for_file())

    offsets.commit("G", "T", 0, 5)
    assert not offsets.is_dirty
    offsets.commit("G", "T", 0, 4)
    assert offsets.is_dirty


@pytest.mark.parametrize("odd", [-1, -(1 << 63), 1 << 63, 1 << 80])
def test_odd_offsets_of_files_journals_and_other_brokers_are_left_out(
    tmp_path: Path, odd: int
) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text(f'{{"offsetTable":{{"T@G":{{0:{odd},1:4}},"U@G":{{0:{odd}}}}}}}')
    changes = msgspec.Raw(b'{"T@G":{"0":%d,"1":4},"U@G":{"0":%d}}' % (odd, odd))

    loaded = Offsets(offset_file(str(path)))
    replayed, copied, became = Offsets(), Offsets(), Offsets()
    replayed.apply_changes(changes)
    copied.overwrite({"T@G": {0: odd, 1: 4}, "U@G": {0: odd}})
    became.become([changes])

    for offsets in (loaded, replayed, copied, became):
        assert offsets.table == {"T@G": {1: 4}}
        assert offsets.index.topics_of("G") == {"T"}
        assert offsets.index.count == 1


def test_a_copy_takes_more_offsets_than_its_own_clients_may_commit() -> None:
    offsets = Offsets()
    offsets.count_max = 1
    offsets.overwrite({"T@G": {0: 1, 1: 4}})
    offsets.become([msgspec.Raw(b'{"T@G":{"0":1,"1":4,"2":5}}')])
    assert offsets.index.count == 3
    assert not offsets.has_room(1)
    with pytest.raises(SystemBusy, match="offsetsMax"):
        offsets.clone("G", "H", "T")


def test_pulled_offsets_are_committed_as_single_ones_are():
    rows = [
        ("G", "T", 0, 5), ("G", "T", 0, 7), ("G", "T", 1, 9), ("H", "T", 0, 3), ("G", "T", 1, -1),
        ("H", "T", 0, 3), ("H", "U", 2, 4), ("G", "T", 7, -1), ("G", "T", 0, 2),
    ]  # fmt: skip
    one_by_one, together = Offsets(), Offsets()
    noted = []
    for offsets in (one_by_one, together):
        offsets.commit("H", "U", 2, 1)
        offsets.noted = lambda: noted.append(1)
    for row in rows:
        one_by_one.commit(*row)
    version = together.version
    together.commit_pulled(rows)
    assert together.table == one_by_one.table
    assert together.index.count == one_by_one.index.count
    assert list(together.noted_changes()) == list(one_by_one.noted_changes())
    assert noted == [1, 1]
    assert together.version > version
    version = together.version
    together.commit_pulled([("G", "T", 0, 2)])
    assert together.version == version
