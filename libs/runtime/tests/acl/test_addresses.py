# SPDX-License-Identifier: Apache-2.0

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.runtime.acl.addresses import Addresses
from cometmq.runtime.acl.errors import AclError

PORT = bytes([0, 0, 0x9C, 0x41])


def matches(pattern: str | None, address: str) -> bool:
    return Addresses(pattern).matches(ip_address(address).packed + PORT)


@pytest.mark.parametrize("pattern", [None, "", "  "])
def test_a_blank_pattern_matches_no_address(pattern: str | None) -> None:
    assert not matches(pattern, "10.0.0.1")
    assert not matches(pattern, "::1")


@pytest.mark.parametrize("pattern", ["*", "*.*.*.*", "*:*:*:*:*:*:*:*"])
def test_stars_match_all_addresses_of_both_families(pattern: str) -> None:
    assert matches(pattern, "10.0.0.1")
    assert matches(pattern, "::1")


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("10.0.0.*", "10.0.0.255", "10.0.1.0"),
        ("10.0.*.*", "10.0.9.9", "10.1.0.0"),
        ("10.0.0.1-50", "10.0.0.50", "10.0.0.51"),
        ("10.0.1-9.*", "10.0.9.200", "10.0.10.1"),
        ("10.0.1-9.7", "10.0.3.7", "10.0.3.8"),
        ("10.0.0.{1,20}", "10.0.0.20", "10.0.0.2"),
        ("10.0.0.1, 10.0.0.7", "10.0.0.7", "10.0.0.3"),
        ("10.0.0.*,10.9.0.1", "10.9.0.1", "10.9.0.2"),
        ("::1", "::1", "::2"),
        ("1050::0005:0600:300C:326b", "1050:0:0:0:5:600:300c:326b", "1050::5:600:300c:326c"),
        ("1050::5:600:300c:*", "1050::5:600:300c:ffff", "1050::5:600:300d:1"),
        ("2::ac5:78:1-200:*", "2::ac5:78:200:9", "2::ac5:78:201:9"),
        ("2::ac5:78:1-ff", "2::ac5:78:ff", "2::ac5:78:100"),
        ("1050::5:600:300c:{1,200}", "1050::5:600:300c:200", "1050::5:600:300c:2"),
        ("1:2:3:4:5:6:7:8,::1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:9"),
        ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"),
    ],
)
def test_patterns(pattern: str, inside: str, outside: str) -> None:
    assert matches(pattern, inside)
    assert not matches(pattern, outside)


@pytest.mark.parametrize(
    "pattern",
    [
        "10.0.0", "10.0.0.0.1", "10.0.0.256", "10.0.0.a", "10.0.*", "10.0.0.-5", "10.0.0.9-",
        "10.0.0.9-5", "10.0.0.1-256", "10.0.0.1-2-3", "10.0.0.1*", "{1,2}", "10.0.0.1{1,2}",
        "10.0.0.{1,x}", "10.0.0.1,10.0.0.{1,2}", "1:2:3:4:5:6:7:8:*", "1:2:*", "::1::*", "::g-h",
        "::1-10000", "localhost", "10.0.0.٣-٤", "010.0.0.*", "10.00.0.1-9", "010.0.0.1",
    ],
)  # fmt: skip
def test_the_error_names_an_invalid_pattern(pattern: str) -> None:
    with pytest.raises(AclError, match="Netaddress examine Exception netaddress is"):
        Addresses(pattern)


@given(st.ip_addresses(), st.ip_addresses())
def test_an_address_matches_only_itself(
    one: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address
) -> None:
    def of_v4(address: IPv4Address | IPv6Address) -> object:
        return getattr(address, "ipv4_mapped", None) or address

    peer = of_v4(other)
    assert matches(str(one), str(of_v4(one)))
    assert matches(str(one), str(peer)) is (of_v4(one) == peer)


@given(st.ip_addresses(v=4), st.integers(0, 3), st.integers(0, 255), st.integers(0, 255))
def test_a_range_matches_the_values_between_its_ends(
    address: IPv4Address, index: int, first: int, last: int
) -> None:
    low, high = sorted((first, last))
    parts = str(address).split(".")
    value = int(parts[index])
    parts[index] = f"{low}-{high}"

    assert matches(".".join(parts), str(address)) is (low <= value <= high)


@given(st.ip_addresses(v=6), st.integers(1, 0xFFFF))
def test_a_star_at_the_end_matches_any_last_part(address: IPv6Address, last: int) -> None:
    parts = address.exploded.split(":")
    pattern = ":".join([*parts[:-1], "*"])

    assert matches(pattern, ":".join([*parts[:-1], f"{last:x}"]))
    assert not matches(pattern, ":".join([f"{int(parts[0], 16) ^ 1:x}", *parts[1:]]))


@given(st.text(alphabet="0123456789abcdef.:*-{}, ", max_size=24))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        addresses = Addresses(text)
    except AclError:
        return
    assert addresses.matches(bytes(4) + PORT) in (True, False)
