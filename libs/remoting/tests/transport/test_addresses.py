# SPDX-License-Identifier: Apache-2.0
"""Addresses, as strings and in the form used in records."""

import pytest

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.addresses import (
    NO_HOST,
    host_port,
    is_address,
    is_same_address,
    parse_address,
    peer_address,
    with_port,
)


@pytest.mark.parametrize(
    ("name", "text", "host"),
    [
        (("10.0.0.1", 80), "10.0.0.1:80", b"\x0a\0\0\1\0\0\0\x50"),
        (("::ffff:10.0.0.1", 80, 0, 0), "10.0.0.1:80", b"\x0a\0\0\1\0\0\0\x50"),
        (
            ("::ffff:0:0:1", 80, 0, 0),
            "[::ffff:0:0:1]:80",
            bytes(8) + b"\xff\xff\0\0\0\0\0\1\0\0\0\x50",
        ),
        (("::1", 80, 0, 0), "[::1]:80", bytes(15) + b"\1\0\0\0\x50"),
        (
            ("fe80::1%eth0", 80, 0, 2),
            "[fe80::1%eth0]:80",
            b"\xfe\x80" + bytes(13) + b"\1\0\0\0\x50",
        ),
        (None, "", NO_HOST),
        ("", "", NO_HOST),
    ],
)
def test_a_peer(name: object, text: str, host: bytes) -> None:
    assert peer_address(name) == (text, host)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" name:1 ", ("name", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:9876", ("::1", 9876)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
    ],
)
def test_an_address(text: str, wanted: tuple[str, int]) -> None:
    assert parse_address(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "host:", ":1", "host:0", "host:65536", "host:x", "h:²"),
        *("tcp://host:1", "a path/host:1", "host:1/", "user@host:1", "a:1,b:1", "a:1;b:1"),
        *("a..b:1", ".a:1", f"{'a' * 64}:1", "\ufffd:1", "\ud800:1"),
        *("::1", "[::1:1", "::1]:1", "[[::1]]:1", "[name]:1", "a:b:1", "::g:1", "[]:1"),
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("host", "host:9876"),
        ("10.0.0.1", "10.0.0.1:9876"),
        ("[::1]", "[::1]:9876"),
        ("::1", "[::1]:9876"),
        ("2001:db8:0:0:0:0:0:1", "[2001:db8:0:0:0:0:0:1]:9876"),
        ("fe80::1%eth0", "[fe80::1%eth0]:9876"),
        *((one, one) for one in ("a:1", "[::1]:1", "::1:1", "::1:99999", "a:", "9876", "[::1:1")),
    ],
)
def test_a_port_is_added_where_there_is_none(text: str, wanted: str) -> None:
    assert with_port(text, 9876) == wanted


def test_an_ipv6_address_in_a_text_has_brackets() -> None:
    assert host_port("10.0.0.1", 1) == "10.0.0.1:1"
    assert host_port("::1", 1) == "[::1]:1"


def test_an_ipv6_address_has_several_forms() -> None:
    forms = ["[::1]:10911", "[0:0:0:0:0:0:0:1]:10911", "::1:10911", " [::0001]:10911"]
    for one in forms:
        assert all(is_same_address(one, other) for other in forms)
        assert not is_same_address(one, "[::1]:10912")
        assert not is_same_address(one, "[::2]:10911")
    assert is_same_address("[::ffff:10.0.0.1]:1", "10.0.0.1:1")
    assert is_same_address("host:1", "host:1")
    assert not is_same_address("host:1", "host:2")
    assert not is_same_address("10.0.0.1:1", "10.0.0.11:1")
    assert not is_same_address("", "10.0.0.1:1")


@pytest.mark.parametrize(
    "host",
    ["a", "a.", "a..b", ".a", "a..", "mq-1.example.org", "x" * 63, "x" * 64, "x" * 63 + ".y",
     "x" * 64 + ".y", "y." + "x" * 64, "127.0.0.1", "::1", "fe80::1%eth0", "_a.b", "A.b"],
)  # fmt: skip
def test_names_in_ascii_are_checked_as_the_resolver_does(host: str) -> None:
    try:
        host.encode("idna")
    except UnicodeError:
        assert not is_address(f"{host}:1")
    else:
        assert is_address(f"{host}:1")
