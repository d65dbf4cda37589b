# SPDX-License-Identifier: Apache-2.0
import msgspec
import pytest

from cometmq.ha.record import (
    Copy,
    Record,
    RecordDamaged,
    Versioned,
    decode_record,
    encode_record,
    may_replace,
)

M, X, Y = Copy(0, "m"), Copy(1, "x"), Copy(2, "y")
RECORD = Record(uid="u", group="orders", epoch=3, holder=M, in_sync=(M, X), copies=3, serial=7)


def test_a_record_survives_its_text():
    assert decode_record(encode_record(RECORD), place="here") == RECORD
    other = msgspec.structs.replace(RECORD, deposed=Y)
    assert decode_record(encode_record(other), place="here") == other
    assert b'"inSync":[[0,"m"],[1,"x"]]' in encode_record(RECORD)


def test_an_election_keeps_the_set_and_names_the_deposed_holder():
    elected = RECORD.elected(X, 5)
    assert (elected.holder, elected.epoch, elected.in_sync) == (X, 5, (M, X))
    assert elected.deposed == M
    assert elected.serial == 8


def test_a_hand_over_and_an_election_of_oneself_depose_nobody():
    assert RECORD.elected(X, 4, deposes=False).deposed is None
    assert RECORD.elected(M, 4).deposed is None


def test_an_epoch_is_given_once():
    with pytest.raises(ValueError, match="epoch 3 is not above 3"):
        RECORD.elected(X, 3)


def test_a_renewal_changes_the_content_even_with_the_same_set():
    assert RECORD.renewed() != RECORD
    assert RECORD.renewed().in_sync == RECORD.in_sync
    assert RECORD.renewed([Y, M]).in_sync == (M, Y)


@pytest.mark.parametrize(
    ("current", "may_land"),
    [
        (Versioned(RECORD, "4"), True),
        (Versioned(RECORD, "5"), False),
        (None, False),
        (Versioned(msgspec.structs.replace(RECORD, uid="successor"), "4"), False),
    ],
)
def test_a_write_lands_on_the_version_and_the_record_that_it_was_based_on(current, may_land):
    assert may_replace(current, Versioned(RECORD, "4"), RECORD.renewed()) is may_land


def test_the_number_of_copies_follows_a_renewal():
    assert RECORD.renewed(copies=5).copies == 5
    assert RECORD.renewed(copies=1).copies == 2
    assert RECORD.renewed([M], copies=1).copies == 1
    assert RECORD.renewed().copies == 3


def test_members_are_found_by_ordinal():
    assert RECORD.member(1) == X
    assert RECORD.member(2) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epoch": 0}, "epoch 0 is below 1"),
        ({"holder": Y}, "its holder, ordinal 2, is not in the in-sync set"),
        ({"in_sync": (X, M)}, "not sorted"),
        ({"in_sync": (M, Copy(1, "w"), X)}, "without repetition"),
        ({"copies": 1}, "2 members are in sync, but the group has 1 copies"),
    ],
)
def test_contradictions_are_named(change, words):
    data = encode_record(msgspec.structs.replace(RECORD, **change))
    with pytest.raises(RecordDamaged, match=words):
        decode_record(data, place="/var/record")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"group":"\xff"}', b'{"deep":' + b"[" * 100_000],
    ids=["empty", "list", "latin", "deep"],
)
def test_unreadable_records_are_named(data):
    with pytest.raises(RecordDamaged, match="the record in /var/record cannot be read"):
        decode_record(data, place="/var/record")
