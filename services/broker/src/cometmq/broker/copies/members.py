# SPDX-License-Identifier: Apache-2.0
"""The members of a broker group, where they listen, and where its record is kept."""

import ipaddress
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from cometmq.broker.settings import BrokerSettings
from cometmq.ha.fencing import Timing
from cometmq.ha.places.choice import open_record
from cometmq.ha.port import RecordPort
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.addresses import parse_address
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tls_keys import Label, client_tls
from cometmq.store.settings import BrokerRole

NO_KEY: Final = (
    "the group has no groupKeyFile and haListenPort is open to other hosts: whoever reaches it can"
    " speak as a member, forge acknowledgements and read all messages"
)
NOT_REQUIRED: Final = (
    "groupKeyRequired=false: whoever reaches haListenPort can speak as a member without the key"
)

_EXAMPLE = "for example 0=10.0.0.1:10911;1=10.0.0.2:10911"


class MemberAddress(msgspec.Struct, frozen=True):
    broker: str
    replication: str


MemberAddresses = Mapping[int, MemberAddress]


def parse_members(text: str) -> MemberAddresses:
    members: dict[int, MemberAddress] = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        number, equals, address = item.partition("=")
        main, _, ha_port = address.partition("/")
        try:
            host, port = parse_address(main)
            replication = f"{main.rpartition(':')[0]}:{int(ha_port) if ha_port else port + 1}"
            parse_address(replication)
            ordinal = int(number)
        except (SettingsError, ValueError):
            host, ordinal = "", -1
            replication = ""
        if not equals or not host or ordinal < 0:
            raise SettingsError(
                f"groupMembers: {item!r} is not brokerId=HOST:LISTENPORT, {_EXAMPLE}"
            )
        if ordinal in members:
            raise SettingsError(f"groupMembers names broker {ordinal} twice")
        members[ordinal] = MemberAddress(main, replication)
    return members


def record_of(settings: BrokerSettings, label: Label = str) -> RecordPort:
    login = settings.etcd_user, settings.etcd_password
    return open_record(settings.group_record, tls=client_tls(settings, label), login=login)


def timing_of(settings: BrokerSettings) -> Timing:
    return Timing.renewed_within(
        settings.renew_deadline_mills,
        heard_within_ms=settings.heard_within_mills,
        lag_timeout_ms=settings.replica_lag_timeout_mills,
    )


def check_members(settings: BrokerSettings, label: Label = str) -> None:
    faults = Faults()
    members = faults.attempt(lambda: parse_members(settings.group_members))
    faults.attempt(lambda: record_of(settings, label))
    if settings.broker_role is not BrokerRole.ASYNC_MASTER:
        faults.add(
            f"brokerRole={settings.broker_role} sets a fixed role, and the record of a group"
            " assigns roles: remove brokerRole or groupRecord"
        )
    if members is not None:
        _check_members(settings, members, faults)
    if settings.heard_within_mills >= settings.renew_deadline_mills:
        faults.add(
            f"heardWithinMills={settings.heard_within_mills} must be below"
            f" renewDeadlineMills={settings.renew_deadline_mills}"
        )
    faults.raise_all()


def _check_members(settings: BrokerSettings, members: Collection[int], faults: Faults) -> None:
    copies = len(members)
    if settings.broker_id not in members:
        faults.add(
            f"brokerId={settings.broker_id} is not in groupMembers: name every broker of the group"
            f" there, {_EXAMPLE}"
        )
    if not members:
        return  # the number of copies is not known
    if settings.min_in_sync > copies:
        faults.add(
            f"minInSync={settings.min_in_sync} is more than the {copies} copies of groupMembers:"
            " no message would ever be accepted"
        )


def exposure(settings: BrokerSettings) -> str:
    """Return why programs without the group's key can pose as members; empty if they cannot."""
    if is_loopback(settings.bind_address):
        return ""
    if not settings.group_key_file:
        return NO_KEY
    return "" if settings.group_key_required else NOT_REQUIRED


@lru_cache(maxsize=8)  # a pure function; watches of the status call it ten times a second
def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
