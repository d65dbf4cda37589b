# SPDX-License-Identifier: Apache-2.0
"""In a commit of many puts, each put gets the same position and bytes as if committed alone."""

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.remoting.message.new_message import NewMessage
from cometmq.store.results import PutResult, PutStatus
from cometmq.store.testing.builders import StoreRig, make_message, small_settings
from cometmq.store.testing.memory_disk import MemoryDisk

UNENCODABLE = 1 << 40  # a sysFlag too large for a record; only the encoder checks it
PREPARED, ROLLBACK = 0x4, 0xC

messages = st.builds(
    make_message,
    topic=st.sampled_from(["T", "U", "bad topic", "t" * 128]),
    queue_id=st.integers(-1, 2),
    body=st.one_of(st.binary(max_size=600), st.just(b"x" * 5_000)),
    tags=st.sampled_from([None, "a"]),
    keys=st.sampled_from([None, "k1 k2"]),
    unique_key=st.sampled_from([None, "0A"]),
    sys_flag=st.sampled_from([0, 0, 0, 0, PREPARED, ROLLBACK, UNENCODABLE]),
    properties=st.sampled_from([None, None, None, {"P": "ü" * 16_400}, {"P": "p" * 33_000}]),
)
puts = st.lists(
    st.one_of(messages, messages, st.lists(messages, min_size=1, max_size=3)), max_size=12
)


def stored(
    every: list[NewMessage | list[NewMessage]], *, at_once: bool
) -> tuple[dict[int, PutResult], dict[str, bytes]]:
    """Return the result of each put, and the files; commit once, or after each put."""
    disk = MemoryDisk()
    rig = StoreRig(disk, small_settings())
    results: dict[int, PutResult] = {}
    for number, put in enumerate(every):
        done = partial(results.__setitem__, number)
        if isinstance(put, list):
            rig.store.put_batch(put, done)
        else:
            rig.store.put(put, done)
        if not at_once:
            rig.store.commit()
    rig.store.commit()
    rig.work()
    rig.store.close()
    return results, {path: bytes(data) for path, data in disk.contents.items()}


@settings(deadline=None)
@given(puts)
def test_puts_of_one_commit_are_stored_as_if_each_had_its_own(every):
    results, files = stored(every, at_once=True)
    assert (results, files) == stored(every, at_once=False)
    assert len(results) == len(every)


def test_a_put_that_cannot_be_encoded_costs_its_commit_nothing():
    good = make_message(unique_key="0A")
    bad = make_message(sys_flag=UNENCODABLE)
    results, files = stored([good, bad, [good, bad], good], at_once=True)
    assert [results[number].status for number in range(4)] == [
        PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL, PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK
    ]  # fmt: skip
    assert files == stored([good, good], at_once=False)[1]


def test_a_refused_unit_does_not_begin_a_file():
    filler = make_message(body=b"x" * 3_700)
    unit = [make_message(body=b"y" * 300), make_message(sys_flag=UNENCODABLE)]
    assert stored([filler, unit], at_once=True)[1] == stored([filler], at_once=True)[1]
