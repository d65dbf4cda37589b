# SPDX-License-Identifier: Apache-2.0
"""Signatures of captured requests, and the fields they cover."""

import base64
import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting import signature
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.signature import SessionCredentials, Signer, signing
from cometmq.testing.remoting.golden import Exchange, load_exchanges

GOLDEN = Path(__file__).parents[3] / "tests" / "golden"
UNSIGNED = {signature.SIGNATURE, signature.FORWARDED}
QUERY_MESSAGE = 12  # a Java broker rejects its own clients' signatures; we accept them
SECRETS = {"adminKey1": "adminSecret1", "userKey1": "userSecret1"}
SIGNED = [
    one
    for one in load_exchanges(GOLDEN, "acl.jsonl")
    if one.receiver == "broker" and one.request.ext.get("AccessKey") in SECRETS
]


def test_names_without_end_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that knows an access key can send any field names before its signature is checked."""
    orders: dict[tuple[str, ...], object] = {}
    monkeypatch.setattr(signature, "_orders", orders)
    signer = Signer("secret")
    for fields in ({"x" * 1_000: "1"}, {f"name-{number}": "1" for number in range(100)}):
        assert signer.sign(fields, b"") == signer.sign(dict(reversed(fields.items())), b"")
    assert not orders
    signer.sign({"a": "1"}, b"")
    assert list(orders) == [("a",)]


@pytest.mark.parametrize("exchange", SIGNED, ids=lambda one: one.name)
def test_requests_of_java_clients_are_judged_as_a_java_broker_judged(exchange: Exchange) -> None:
    ((serialization, head, body),) = FrameReader().feed(exchange.request.data)
    raw = decode_header(serialization, head, body)
    remark = exchange.response.header.get("remark", "") if exchange.response else ""
    is_refused = "Check signature failed" in str(remark) and raw.code != QUERY_MESSAGE

    signer = Signer(SECRETS[raw.ext["AccessKey"]])

    assert signer.has_signed(raw.ext, body) is not is_refused


def test_a_broker_may_mark_a_signed_request_as_forwarded() -> None:
    signer = Signer("secret-1")
    ext = {"topic": "T", "AccessKey": "user-1", "z": "7"}
    signed = {**ext, "Signature": signer.sign(ext, b"body")}
    assert signer.has_signed({**signed, signature.FORWARDED: "true"}, b"body")


def test_a_signature_covers_every_field_and_the_body() -> None:
    signer = Signer("secret-1")
    ext = {"topic": "T", "AccessKey": "user-1", "queueId": "7"}
    whole = {**ext, "Signature": signer.sign(ext, b"body")}

    assert signer.has_signed(whole, b"body")
    assert not signer.has_signed(whole, b"bodY")
    assert not signer.has_signed({**whole, "queueId": "8"}, b"body")
    assert not signer.has_signed({**whole, "more": "field"}, b"body")
    assert not signer.has_signed(ext, b"body")
    assert not signer.has_signed({**whole, "Signature": "grün"}, b"body")
    assert not Signer("secret-2").has_signed(whole, b"body")


def test_the_field_of_which_brokers_disagree_is_taken_with_and_without_and_never_sent() -> None:
    signer = Signer("secret-1")
    ext = {"topic": "T", "_UNIQUE_KEY_QUERY": "true"}
    both = {**ext, "Signature": signer.sign(ext, b"")}
    without = {**ext, "Signature": signer.sign({"topic": "T"}, b"")}
    assert signer.has_signed(both, b"")
    assert signer.has_signed(without, b"")

    signing(SessionCredentials("user-1", "secret-1", "token"))(12, ext, b"")

    assert set(ext) == {"topic", "AccessKey", "SecurityToken", "Signature"}
    assert signer.has_signed(ext, b"")


@given(
    st.dictionaries(st.text(min_size=1), st.text(), min_size=0, max_size=6),
    st.binary(),
    st.text(min_size=1),
)
def test_the_content_is_the_values_by_name_then_the_body(
    ext: dict[str, str], body: bytes, secret: str
) -> None:
    ext = {name: text for name, text in ext.items() if name not in UNSIGNED}
    names = sorted(ext, key=lambda name: name.encode("utf-16-be"))
    content = "".join(ext[name] for name in names).encode() + body
    expected = base64.b64encode(hmac.digest(secret.encode(), content, hashlib.sha1)).decode()

    assert Signer(secret).sign(ext, body) == expected
    assert Signer(secret).sign({**ext, "Signature": "any"}, body) == expected


def test_orders_that_nobody_repeats_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "_orders", {})
    monkeypatch.setattr(signature, "_ORDERS_MAX", 2)
    signer = Signer("secret-1")
    for number in range(5):
        signer.sign({f"name{number}": "x"}, b"")
    assert len(signature._orders) == 2


def test_a_secret_is_not_shown() -> None:
    assert "secret-1" not in repr(SessionCredentials("user-1", "secret-1"))
