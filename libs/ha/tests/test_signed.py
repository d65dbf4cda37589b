# SPDX-License-Identifier: Apache-2.0
"""MACs of single messages cover purpose and fields, and fit only the key that made them."""

import pytest

from cometmq.ha.signed import Signed, message_mac, signing_key

KEYS = (b"a" * 32, b"b" * 32)
FIELDS = (b"orders", b"0", b"7")


@pytest.mark.parametrize("key", KEYS)
def test_each_accepted_key_signs(key):
    found = message_mac(key, Signed.CALL, FIELDS)
    assert signing_key(KEYS, Signed.CALL, FIELDS, found) == key


@pytest.mark.parametrize(
    ("purpose", "fields"),
    [
        (Signed.ANSWER, FIELDS),
        (Signed.CALL, (b"orders0", b"", b"7")),
        (Signed.CALL, (b"orders", b"0", b"8")),
        (Signed.CALL, (*FIELDS, b"")),
    ],
)
def test_a_mac_is_worthless_for_anything_else(purpose, fields):
    found = message_mac(KEYS[0], Signed.CALL, FIELDS)
    assert signing_key(KEYS, purpose, fields, found) is None


def test_another_key_and_another_length_prove_nothing():
    found = message_mac(b"c" * 32, Signed.CALL, FIELDS)
    assert signing_key(KEYS, Signed.CALL, FIELDS, found) is None
    assert signing_key(KEYS, Signed.CALL, FIELDS, b"") is None
    assert signing_key((), Signed.CALL, FIELDS, found) is None
