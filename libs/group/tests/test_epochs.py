# SPDX-License-Identifier: Apache-2.0
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.ha import epochs as module
from cometmq.ha.durable import OsFiles
from cometmq.ha.epochs import (
    EPOCH_FILE,
    Entry,
    EpochFile,
    EpochsDamaged,
    History,
    begun,
    common_point,
    decode_epochs,
    encode_epochs,
    last_epoch,
    pruned,
    reached,
    truncated,
)


def history(*pairs):
    return tuple(Entry(*pair) for pair in pairs)


def test_an_epoch_starts_at_the_end_of_the_log():
    assert begun((), 1, 0) == history((1, 0))
    assert begun(history((1, 0)), 4, 100) == history((1, 0), (4, 100))


def test_an_epoch_without_bytes_is_replaced_by_the_next():
    assert begun(history((1, 0), (2, 100)), 3, 100) == history((1, 0), (3, 100))


@pytest.mark.parametrize(("epoch", "start"), [(2, 200), (1, 200), (3, 99)])
def test_an_epoch_cannot_go_back(epoch, start):
    with pytest.raises(ValueError, match="cannot follow"):
        begun(history((2, 100)), epoch, start)


def test_truncation_removes_entries_above_the_end():
    entries = history((1, 0), (2, 100), (3, 200))
    assert truncated(entries, 200) == entries
    assert truncated(entries, 199) == history((1, 0), (2, 100))
    assert truncated(entries, 0) == history((1, 0))


def test_last_epoch_of_an_empty_history_is_zero():
    assert last_epoch(()) == 0
    assert last_epoch(history((1, 0), (7, 1))) == 7


def test_a_follower_takes_entries_over_when_it_reaches_them():
    masters = history((1, 0), (3, 100), (4, 200))
    assert reached((), masters, 0) == history((1, 0))
    assert reached(history((1, 0)), masters, 99) == history((1, 0))
    assert reached(history((1, 0)), masters, 100) == history((1, 0), (3, 100))
    assert reached(history((1, 0)), masters, 300) == masters


@pytest.mark.parametrize(
    ("mine", "my_end", "masters", "masters_end", "offset", "kept"),
    [
        ([], 0, [(1, 0)], 50, 0, []),
        ([(1, 0)], 30, [(1, 0)], 50, 30, [(1, 0)]),
        ([(1, 0)], 70, [(1, 0)], 50, 50, [(1, 0)]),
        # a dead master's tail: epoch 1 continued here, while epoch 2 began at 50 there
        ([(1, 0)], 70, [(1, 0), (2, 50)], 90, 50, [(1, 0)]),
        # an epoch that the new master has never seen
        ([(1, 0), (2, 60)], 80, [(1, 0), (3, 50)], 90, 50, [(1, 0)]),
        ([(1, 0), (2, 40)], 80, [(1, 0), (3, 50)], 90, 40, [(1, 0)]),
        # equal epochs with different starts are different epochs
        ([(1, 0), (2, 40)], 80, [(1, 0), (2, 50)], 90, 40, [(1, 0)]),
        # bytes from before the group
        ([], 30, [(1, 100)], 200, 30, []),
        ([(1, 120)], 200, [(2, 100)], 200, 100, []),
        # the newest common entry decides, not the first
        ([(1, 0), (3, 50)], 60, [(1, 0), (3, 50), (4, 55)], 70, 55, [(1, 0), (3, 50)]),
    ],
)
def test_logs_agree_up_to_the_end_of_their_newest_common_epoch(
    mine, my_end, masters, masters_end, offset, kept
):
    point = common_point(history(*mine), my_end, history(*masters), masters_end)
    assert point == (offset, history(*kept))


@st.composite
def forks(draw):
    """Generate two logs with a common prefix (epoch and value per byte), and their histories."""

    def grow(log, entries, epochs):
        for epoch in epochs:
            size = draw(st.integers(0, 3))
            entries = begun(entries, epoch, len(log))
            log = log + [(epoch, draw(st.integers(0, 1))) for _ in range(size)]
        return log, entries

    log, entries = grow([], (), draw(st.sampled_from([[], [1], [1, 2]])))
    one = grow(log, entries, draw(st.sampled_from([[], [3], [3, 5]])))
    cut = draw(st.integers(0, len(log)))
    other = grow(log[:cut], truncated(entries, cut), draw(st.sampled_from([[], [4], [4, 6]])))
    return one, other


@given(forks())
def test_nothing_that_differs_is_kept(pair):
    (mine, my_history), (masters, masters_history) = pair
    offset, kept = common_point(my_history, len(mine), masters_history, len(masters))
    assert mine[:offset] == masters[:offset]
    assert kept == truncated(kept, offset)
    final = reached(kept, masters_history, len(masters))
    assert last_epoch(final) == last_epoch(masters_history)


@pytest.mark.parametrize(
    ("first", "kept"),
    [
        (0, [(1, 0), (2, 100), (3, 200)]),
        (100, [(1, 0), (2, 100), (3, 200)]),  # a log that ends at 100 ends in epoch 1
        (101, [(2, 100), (3, 200)]),
        (200, [(2, 100), (3, 200)]),
        (999, [(3, 200)]),
    ],
)
def test_entries_of_deleted_bytes_are_pruned(first, kept):
    assert pruned(history((1, 0), (2, 100), (3, 200)), first) == history(*kept)
    assert pruned((), first) == ()


@given(forks(), st.data())
def test_a_pruned_history_finds_the_same_point_or_none(pair, data):
    (mine, my_history), (masters, masters_history) = pair
    whole = common_point(my_history, len(mine), masters_history, len(masters))
    my_first = data.draw(st.integers(0, len(mine)))
    masters_first = data.draw(st.integers(0, len(masters)))
    mine_pruned, masters_pruned = (
        pruned(my_history, my_first),
        pruned(masters_history, masters_first),
    )
    point = common_point(mine_pruned, len(mine), masters_pruned, len(masters))
    first = max(my_first, masters_first)
    assert (point.offset == whole.offset) if whole.offset >= first else (point.offset < first)


@given(forks(), st.sampled_from([(2, 2), (2, 4), (4, 2), (3, 100), (100, 3)]))
def test_a_combined_history_never_agrees_to_more(pair, limits):
    (mine, my_history), (masters, masters_history) = pair
    combined = []
    for entries, limit in zip((my_history, masters_history), limits, strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "HISTORY_COUNT_MAX", limit)
            combined.append(pruned(entries, 0))
        assert len(combined[-1]) <= limit
        assert last_epoch(combined[-1]) == last_epoch(entries)
    offset, _ = common_point(combined[0], len(mine), combined[1], len(masters))
    assert mine[:offset] == masters[:offset]


def test_a_history_stays_bounded_however_many_elections_there_are():
    entries: History = ()
    end = 0
    for epoch in range(1, 50_001):
        entries = begun(entries, epoch, end)
        if epoch % 1000 == 0:
            entries = pruned(entries, 0)
        end += 100
    assert len(entries) <= module.HISTORY_COUNT_MAX
    assert (entries[0].start, last_epoch(entries)) == (0, 50_000)
    assert decode_epochs(encode_epochs(entries), place="here") == entries
    # a log that is ten thousand elections behind still continues where it is
    follower = pruned(tuple(entry for entry in entries if entry.epoch <= 42_000), 0)
    assert common_point(follower, 4_200_000, entries, end).offset == 4_200_000


def test_the_file_is_that_of_rocketmq_5():
    lines = b"1-0\n3-4096\n"
    text = b"2\n%d\n" % (zlib.crc32(lines) & 0x7FFFFFFF) + lines
    assert encode_epochs(history((1, 0), (3, 4096))) == text
    assert decode_epochs(text, place="here") == history((1, 0), (3, 4096))


def test_a_checksum_of_zero_is_not_checked():
    assert decode_epochs(b"1\n0\n1-0\n", place="here") == history((1, 0))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not numbers"),
        (b"1\nx\n1-0\n", "not numbers"),
        (b"1\n5\n1-0\n", "checksum 5"),
        (b"1\n0\n1:0\n", "'1:0' is not an epoch and an offset"),
        (b"1\n0\n\xff\n", "can't decode"),
        (b"2\n0\n1-0\n", "1 entries instead of 2"),
        (b"2\n0\n2-0\n1-5\n", "do not rise"),
        (b"2\n0\n1-5\n2-5\n", "do not rise"),
    ],
)
def test_a_damaged_file_is_named(data, words):
    with pytest.raises(EpochsDamaged, match=words) as raised:
        decode_epochs(data, place="/store/epochFileCheckpoint")
    assert "/store/epochFileCheckpoint is damaged" in str(raised.value)


def test_a_history_is_loaded_as_it_was_saved(tmp_path):
    file = EpochFile(tmp_path, OsFiles())
    assert file.load() == ()
    file.save(history((1, 0), (2, 10)))
    assert EpochFile(tmp_path, OsFiles()).load() == history((1, 0), (2, 10))
    assert (tmp_path / EPOCH_FILE).read_bytes().startswith(b"2\n")
