# SPDX-License-Identifier: Apache-2.0
"""The shared key of a group: its file, and what a proof is worth anywhere else."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.ha.proof import (
    KEY_COUNT_MAX,
    NONCE_BYTES,
    Initiator,
    KeyFile,
    Keys,
    NotProven,
    Part,
    Responder,
    connection_fields,
    key_of,
    mac,
    parse_keys,
)
from cometmq.remoting.errors import SettingsError

OLD, NEW, OTHER = (bytes([65 + n]) * 44 for n in range(3))
NAMES = ("c/g/1", "c/g/0")
NONCES = (b"i" * NONCE_BYTES, b"r" * NONCE_BYTES)
FACTS = partial(connection_fields, names=NAMES, nonces=NONCES)


def prove(
    mine: Keys,
    theirs: Keys,
    *,
    wanted: str = "c/g/0",
) -> bytes:
    """Connect `mine` to `theirs`; return the key that the responder was proven."""
    initiator = Initiator(mine, "c/g/1", responder=wanted)
    responder = Responder(
        theirs, "c/g/0", initiator=initiator.name, initiator_nonce=initiator.nonce
    )
    return responder.check(initiator.answer(responder.name, responder.nonce, responder.proof))


# The file


def test_keys_are_the_lines_without_comments() -> None:
    text = b"# rotated in May\n" + OLD + b"\n\n  " + NEW + b" \r\n" + OLD + b"\n# end\n"
    assert parse_keys(text, "groupKeyFile=k") == (OLD, NEW)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "has no key"),
        (b"# only a comment\n", "has no key"),
        (OLD + b"\nshort-secret\n", "line 2 has 12 bytes"),
        (OLD + b"\n" + NEW[:40], "half-written"),
        (b"x" * 70_000, "more than 65536 bytes"),
        (b"".join(b"%040d\n" % n for n in range(KEY_COUNT_MAX + 1)), "9 keys: 8 at most"),
    ],
)
def test_an_unusable_file_is_refused_without_naming_a_key(text: bytes, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        parse_keys(text, "groupKeyFile=/k")
    assert str(caught.value).startswith("groupKeyFile=/k: ")
    assert "short-secret" not in str(caught.value)


@given(st.integers(0, 2 * 45 - 1))
def test_no_half_written_file_gives_a_key_that_was_never_meant(count: int) -> None:
    whole = OLD + b"\n" + NEW + b"\n"
    try:
        keys = parse_keys(whole[:count], "k")
    except SettingsError:
        return
    assert set(keys) <= {OLD, NEW}


def test_a_changed_file_counts_once_it_has_settled(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(OLD + b"\n")
    file = KeyFile(path)
    path.write_bytes(NEW + b"\n" + OLD + b"\n")
    found = [(file.refresh(), file.keys) for _ in range(3)]
    assert found == [(False, (OLD,)), (True, (NEW, OLD)), (False, (NEW, OLD))]


@pytest.mark.parametrize("content", [b"", b"short\n", NEW[:40], None])
def test_an_unusable_change_keeps_the_keys_and_is_reported_once(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "key"
    path.write_bytes(OLD + b"\n")
    file = KeyFile(path, "groupKeyFile in broker.conf:3")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert not file.refresh()
    with pytest.raises(SettingsError, match=f"groupKeyFile in broker.conf:3={path}"):
        file.refresh()
    assert not file.refresh()
    assert file.keys == (OLD,)
    path.write_bytes(NEW + b"\n")
    assert [file.refresh(), file.refresh()] == [False, True]


# The proof


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ((OLD,), (OLD,)),
        ((OLD,), (OLD, NEW)),
        ((OLD, NEW), (OLD,)),
        ((NEW, OLD), (OLD, NEW)),
        ((OLD, NEW), (NEW, OLD)),
        ((NEW,), (NEW, OLD)),
        ((NEW, OLD), (NEW,)),
    ],
)
def test_every_step_of_a_rotation_proves(mine: Keys, theirs: Keys) -> None:
    assert prove(mine, theirs) == theirs[0]


@pytest.mark.parametrize(("mine", "theirs"), [((OLD,), (NEW,)), ((NEW, OTHER), (OLD, OTHER))])
def test_a_wrong_key_is_not_proven(mine: Keys, theirs: Keys) -> None:
    with pytest.raises(NotProven, match="does not prove a key"):
        prove(mine, theirs)


def test_another_member_than_the_wanted_one_is_not_proven() -> None:
    with pytest.raises(NotProven, match="it is c/g/0, and c/g/2 is wanted"):
        prove((OLD,), (OLD,), wanted="c/g/2")


def test_a_proof_cannot_be_reflected() -> None:
    proof = mac(OLD, FACTS(Part.RESPONDER))
    assert key_of((OLD,), FACTS(Part.RESPONDER), proof) == OLD
    assert key_of((OLD,), FACTS(Part.INITIATOR), proof) is None


@pytest.mark.parametrize(
    ("names", "nonces"),
    [
        (("c/g/2", "c/g/0"), NONCES),
        (("c/g/1", "c/g/2"), NONCES),
        (("c/g/1c", "/g/0"), NONCES),
        (NAMES, (b"x" * NONCE_BYTES, NONCES[1])),
        (NAMES, (NONCES[0], b"x" * NONCE_BYTES)),
    ],
)
def test_a_proof_is_worthless_on_another_connection(
    names: tuple[str, str], nonces: tuple[bytes, bytes]
) -> None:
    proof = mac(OLD, FACTS(Part.INITIATOR))
    assert key_of((OLD,), connection_fields(Part.INITIATOR, names, nonces), proof) is None


def test_nonces_are_never_the_same() -> None:
    nonces = {Initiator((OLD,), "a", responder="b").nonce for _ in range(100)}
    assert len(nonces) == 100


@pytest.mark.parametrize(("name", "nonce"), [("a", b""), ("a", b"x" * 33), ("a" * 600, b"x" * 32)])
def test_a_responder_bounds_what_a_stranger_sends(name: str, nonce: bytes) -> None:
    with pytest.raises(NotProven, match="its nonce has"):
        Responder((OLD,), "b", initiator=name, initiator_nonce=nonce)


# MACs of messages


def test_a_mac_fits_one_key_and_its_fields() -> None:
    fields = (b"call", b"orders", b"0")
    for key in (OLD, NEW):
        assert key_of((OLD, NEW), fields, mac(key, fields)) == key
    for other in ((b"call", b"orders0", b""), (b"answer", *fields[1:]), (*fields, b"")):
        assert key_of((OLD, NEW), other, mac(OLD, fields)) is None
    assert key_of((OLD, NEW), fields, mac(OTHER, fields)) is None
    assert key_of((OLD,), fields, b"") is None
    assert key_of((), fields, mac(OLD, fields)) is None
