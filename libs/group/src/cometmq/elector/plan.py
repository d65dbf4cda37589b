# SPDX-License-Identifier: Apache-2.0
"""Builds what an elector needs from its settings: the group, its record store, and the timing."""

from collections.abc import Mapping

import msgspec

from cometmq.elector.settings import EXAMPLE, ElectorSettings
from cometmq.ha.actions import Group
from cometmq.ha.fencing import Timing
from cometmq.ha.places.choice import open_record
from cometmq.ha.port import RecordPort
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.addresses import is_address
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tls_keys import Label, client_tls


class Plan(msgspec.Struct, frozen=True):
    group: Group
    whole: Group
    """The group including its leaving members, whose copies count when the record is restored."""
    leaving: frozenset[int]
    addresses: Mapping[int, str]


def plan_of(settings: ElectorSettings) -> Plan:
    """Return the group; raise SettingsError for settings that are missing or contradictory."""
    faults = Faults()
    if not settings.broker_name:
        faults.add("brokerName must be set: the name of the broker group")
    addresses = faults.attempt(lambda: parse_members(settings.control_members))
    leaving = faults.attempt(lambda: _parse_leaving(settings.leaving_members))
    if addresses is not None and leaving is not None and (unknown := leaving - addresses.keys()):
        faults.add(
            f"leavingMembers names brokers {sorted(unknown)}, which are not in controlMembers: keep"
            " them there until they are out of the in-sync set"
        )
    faults.raise_all()
    assert addresses is not None
    assert leaving is not None
    staying = tuple(sorted(addresses.keys() - leaving))
    if not staying:
        raise SettingsError("leavingMembers names every broker of controlMembers: one must stay")

    def group(ordinals: tuple[int, ...]) -> Group:
        return Group(
            name=settings.broker_name,
            ordinals=ordinals,
            min_in_sync=settings.min_in_sync,
        )

    return Plan(group(staying), group(tuple(sorted(addresses))), leaving, addresses)


def record_of(settings: ElectorSettings, label: Label = str) -> RecordPort:
    login = settings.etcd_user, settings.etcd_password
    return open_record(settings.group_record, tls=client_tls(settings, label), login=login)


def timing_of(settings: ElectorSettings) -> Timing:
    return Timing.renewed_within(
        settings.renew_deadline_mills, heard_within_ms=settings.heard_within_mills
    )


def parse_members(text: str) -> dict[int, str]:
    """Return the control addresses by broker id; raise SettingsError if `text` is malformed."""
    members: dict[int, str] = {}
    for item in filter(None, map(str.strip, text.split(";"))):
        number, _, address = item.partition("=")
        if not number.strip().isdecimal() or not is_address(address):
            raise SettingsError(
                f"controlMembers: {item!r} is not brokerId=HOST:CONTROLPORT, for example {EXAMPLE}"
            )
        if int(number) in members:
            raise SettingsError(f"controlMembers names broker {int(number)} twice")
        members[int(number)] = address.strip()
    if not members:
        raise SettingsError(f"controlMembers must be set: all brokers, for example {EXAMPLE}")
    return members


def _parse_leaving(text: str) -> frozenset[int]:
    items = [item for item in map(str.strip, text.split(";")) if item]
    if wrong := [item for item in items if not item.isdecimal()]:
        raise SettingsError(f"leavingMembers: {wrong[0]!r} is not a broker id, for example 2;3")
    return frozenset(map(int, items))
