# SPDX-License-Identifier: Apache-2.0
"""The broker's addresses: where it listens, and which address it advertises."""

import re
import socket
import struct
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

import msgspec

from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.addresses import parse_address
from cometmq.runtime.places import free_port
from cometmq.runtime.settings import DEFAULT, Loaded, Origin

VIP_OFFSET: Final = -2  # the port for clients that send short requests only
HA_OFFSET: Final = 1
DERIVED: Final = Origin("derived from listenPort")
_OUTSIDE: Final = ("192.0.2.1", 9)  # reserved for documentation: nothing is sent to it


PORT_MAX: Final = 65_535
_ADVERTISED: Final = re.compile(
    r"(?P<id>[0-9]{1,9})=(?P<host>[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})"
)


class Address(NamedTuple):
    """An advertised address, and the name of the setting that determines its host."""

    host: str
    port: int
    setting: str


class Ports(NamedTuple):
    """The ports of one broker; vip is None if the main port is too low to have one."""

    main: int
    vip: int | None
    ha: int


def advertised_host(host: str, bind_address: str) -> str:
    """Return the advertised address; if none is configured, an address of this machine."""
    if host:
        return host.strip("[]")
    is_one = bind_address and not is_unspecified(bind_address)
    return bind_address if is_one else outward_ip()


def advertised(loaded: Loaded[BrokerSettings], main_port: int) -> Address:
    """Return the address for clients; raise SettingsError if it cannot be found out.

    Without advertisedAddresses, its port is `main_port`.
    """
    settings = loaded.value
    host, port, setting = "", main_port, loaded.label("brokerIP1")
    if settings.advertised_addresses:
        setting = loaded.label("advertisedAddresses")
        addresses = parse_advertised(settings.advertised_addresses, setting=setting)
        if settings.broker_id not in addresses:
            raise SettingsError(
                f"{setting} has no entry for this broker: add {settings.broker_id}=HOST:PORT"
            )
        host, port = addresses[settings.broker_id]
    return Address(
        advertised_host(host or settings.broker_ip1, settings.bind_address), port, setting
    )


def shared_address(loaded: Loaded[BrokerSettings]) -> Address | None:
    """Return the address that leads to the master of the broker group; None if there is none.

    Raise SettingsError if it is malformed.
    """
    text, setting = loaded.value.group_address, loaded.label("groupAddress")
    if not text:
        return None
    try:
        host, port = parse_address(text)
    except SettingsError as error:
        raise SettingsError(
            f"{setting}: {text!r} is not HOST:PORT, for example 10.0.0.100:10911"
        ) from error
    check_advertised(host, setting=setting)
    return Address(host, port, setting)


def parse_advertised(text: str, *, setting: str) -> Mapping[int, tuple[str, int]]:
    """Parse advertisedAddresses into hosts and ports by broker id; a host may be empty.

    Raise SettingsError if it is malformed.
    """
    addresses: dict[int, tuple[str, int]] = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        found = _ADVERTISED.fullmatch(item)
        if found is None or not 0 < int(found["port"]) <= PORT_MAX:
            raise SettingsError(
                f"{setting}: {item!r} is not brokerId=HOST:PORT, for example"
                " 0=mq-0.example.com:10911;1=mq-1.example.com:10911"
            )
        number = int(found["id"])
        if number in addresses:
            raise SettingsError(f"{setting} names broker {number} twice")
        check_advertised(found["host"], setting=setting)
        addresses[number] = found["host"], int(found["port"])
    return addresses


def check_advertised(host: str, *, setting: str) -> None:
    """Raise SettingsError for an address with a port, and for a wildcard address."""
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit() and (":" not in name or name.endswith("]")):
        raise SettingsError(
            f"{setting}: {host} has a port; give {name}, and the port as listenPort"
        )
    if host and is_unspecified(host):
        raise SettingsError(
            f"{setting}: others cannot connect to {host}; give the address at which they "
            f"reach this machine, for example {outward_ip()} (the broker listens on all addresses "
            "unless bindAddress is set)"
        )


def is_unspecified(host: str) -> bool:
    """Return whether an address or name is a wildcard: 0.0.0.0, ::, 0 or an equivalent."""
    try:
        infos = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    found = ip_address(str(infos[0][4][0]).partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_unspecified


def is_own_address(host: str) -> bool:
    """Return whether the address is this machine's; raise OSError if a name cannot be resolved."""
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def explicit_ha_port(loaded: Loaded[BrokerSettings]) -> int | None:
    """Return haListenPort if it is set; otherwise, and for 0, it follows listenPort."""
    is_derived = loaded.origins.get("haListenPort", DEFAULT) in {DEFAULT, DERIVED}
    return None if is_derived else loaded.value.ha_listen_port or None


def with_ha_port(loaded: Loaded[BrokerSettings], ports: Ports) -> Loaded[BrokerSettings]:
    """Return the settings with the actual port for slaves and its origin, so that tools show it."""
    value = msgspec.structs.replace(loaded.value, ha_listen_port=ports.ha)
    origins = loaded.origins
    if explicit_ha_port(loaded) is None:
        origins = {**origins, "haListenPort": DERIVED}
    return msgspec.structs.replace(loaded, value=value, origins=origins)


def with_derived_port(loaded: Loaded[BrokerSettings]) -> Loaded[BrokerSettings]:
    """Return the settings with the port for slaves that a broker would listen on, for printing.

    The port is 0 if it is chosen at startup.
    """
    if explicit_ha_port(loaded) is not None:
        return loaded
    return with_ha_port(loaded, derived_ports(loaded))


def derived_ports(loaded: Loaded[BrokerSettings]) -> Ports:
    """Return the ports that follow from the settings; those that a start chooses are 0."""
    main, ha = loaded.value.listen_port, explicit_ha_port(loaded)
    return _ports(main, ha) if main else Ports(0, None, ha or 0)


def choose_ports(listen_port: int, bind_address: str, *, ha_port: int | None) -> Ports:
    """Return the ports; if listenPort is 0, choose a free port whose neighbours are free too."""
    return _ports(listen_port or free_port(bind_address, (0, VIP_OFFSET, HA_OFFSET)), ha_port)


def _ports(main: int, ha_port: int | None) -> Ports:
    vip = main + VIP_OFFSET
    return Ports(main, vip if vip > 0 else None, ha_port or min(main + HA_OFFSET, PORT_MAX))


def outward_ip() -> str:
    """Return the address at which other machines most likely reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_OUTSIDE)
            return str(probe.getsockname()[0])
        except OSError:  # no route at all: a machine without network
            return "127.0.0.1"


def packed_host(host: str, port: int, *, setting: str = "brokerIP1") -> bytes:
    """Return an address in the binary form used in records, resolving a host name.

    Records contain IPv6 addresses without their zones, and mapped IPv4 addresses in four bytes.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(f"{setting}: {host} cannot be resolved: {error.strerror}") from error
    address = ip_address(str(infos[0][4][0]).partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).packed + struct.pack(">i", port)
