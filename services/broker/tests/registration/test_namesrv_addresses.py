# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.registration.namesrv_addresses import (
    HostPort,
    NamesrvAddresses,
    parse_addresses,
)
from cometmq.remoting.errors import SettingsError


class Resolver:
    def __init__(self, **known: list[str]) -> None:
        self.known = known

    async def __call__(self, host: str) -> list[str]:
        if host not in self.known:
            raise OSError(f"{host}: name or service not known")
        return self.known[host]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a:1", [HostPort("a", 1)]),
        (" a:1 ;b ; ", [HostPort("a", 1), HostPort("b", 9876)]),
        ("a:1,b:2", [HostPort("a", 1), HostPort("b", 2)]),
        ("http://a:1;http://b", [HostPort("a", 1), HostPort("b", 9876)]),
        ("[::1]:77;::2", [HostPort("::1", 77), HostPort("::2", 9876)]),
        ("::1:9877", [HostPort("::1", 9877)]),
    ],
)
def test_the_setting_lists_hosts_and_ports(text: str, expected: list[HostPort]) -> None:
    assert parse_addresses(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a:port",
        ":9876",
        "a:0",
        "a:70000",
        "a:1;b:-1",
        "https://a:1",
        "a/b",
        "a:1:b:2",
        "[a]:1",
        "[::1:1",
    ],
)
def test_the_error_names_a_malformed_entry(text: str) -> None:
    with pytest.raises(SettingsError, match="namesrvAddr="):
        parse_addresses(text)


async def test_a_name_is_resolved_each_time_to_all_its_addresses() -> None:
    resolver = Resolver(headless=["10.0.0.1", "10.0.0.2"])
    addresses = NamesrvAddresses("headless:9876;10.0.0.1:9876;[::1]:5", lookup=resolver)

    assert await addresses.resolve() == ["10.0.0.1:9876", "10.0.0.2:9876", "[::1]:5"]
    resolver.known["headless"] = ["10.0.0.3"]
    assert await addresses.resolve() == ["10.0.0.3:9876", "10.0.0.1:9876", "[::1]:5"]


async def test_a_failed_lookup_keeps_the_last_addresses() -> None:
    resolver = Resolver(ns=["10.0.0.1"])
    addresses = NamesrvAddresses("ns:9876", lookup=resolver)
    await addresses.resolve()
    del resolver.known["ns"]

    assert await addresses.resolve() == ["10.0.0.1:9876"]
