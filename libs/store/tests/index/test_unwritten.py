# SPDX-License-Identifier: Apache-2.0
"""Entries of an index file that are only in memory, against a plain list of them."""

from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.types import Buffer
from cometmq.store.index import unwritten
from cometmq.store.index.index_format import ENTRY
from cometmq.store.index.unwritten import UnwrittenEntries

PIECE_COUNT = unwritten.PIECE_BYTES // ENTRY.size
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "take", "oldest", "release"]), st.integers(1, 5_000)),
    max_size=30,
)


@given(STEPS)
def test_entries_leave_in_the_order_in_which_they_came(steps):
    entries, model, number = UnwrittenEntries(), [], 0
    taken: list[tuple[tuple[Buffer, ...], bytes]] = []
    for step, count in steps:
        if step == "add":
            rows = [(number + at, number, 0, 0) for at in range(count)]
            entries.add(b"".join(ENTRY.pack(*row) for row in rows))
            model += rows
            number += count
        elif model:
            wanted = None if step == "take" else count * ENTRY.size
            pieces = entries.pieces(wanted)
            data = b"".join(pieces)
            taken.append((pieces, data))
            assert len(data) >= min(wanted or 0, len(model) * ENTRY.size)
            assert list(ENTRY.iter_unpack(data)) == model[: len(data) // ENTRY.size]
            if step == "release":
                entries.release(len(data))
                del model[: len(data) // ENTRY.size]
        assert entries.count == len(model)
        assert entries.size_bytes == len(model) * ENTRY.size
        for at in {0, len(model) // 3, len(model) // 2, len(model) - 1} if model else ():
            assert entries.entry(at) == model[at]
    assert all(b"".join(pieces) == data for pieces, data in taken), "a piece has changed"
