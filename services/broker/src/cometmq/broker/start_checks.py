# SPDX-License-Identifier: Apache-2.0
"""Checks a broker's settings, then its ports and addresses, before it opens any file or socket."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.broker.copies.members import check_members
from cometmq.broker.copies.roles.role_hook import check_hook
from cometmq.broker.copies.streams.rocketmq.slave_addresses import parse_allowed
from cometmq.broker.registration.addresses import (
    Ports,
    advertised,
    check_advertised,
    packed_host,
    shared_address,
)
from cometmq.broker.registration.namesrv_addresses import parse_addresses
from cometmq.broker.role import MASTER_ID
from cometmq.broker.settings import BrokerSettings
from cometmq.ha.proof import KeyFile
from cometmq.remoting.log import Log
from cometmq.runtime.places import check_different, check_port
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tls_keys import client_tls, server_tls
from cometmq.store.settings import BrokerRole

VIP_NOTE: Final = "the second port of the broker"
HA_NOTE: Final = "the port for slaves"


def check_settings(loaded: Loaded[BrokerSettings]) -> None:
    """Refuse settings that contradict each other or name features that do not exist.

    Raise one SettingsError with a line for each fault.
    """
    settings = loaded.value
    faults = Faults()
    for name, address in (("brokerIP1", settings.broker_ip1), ("brokerIP2", settings.broker_ip2)):
        faults.attempt(partial(check_advertised, address, setting=loaded.label(name)))
    faults.attempt(lambda: advertised(loaded, settings.listen_port))
    faults.attempt(lambda: shared_address(loaded))
    faults.attempt(lambda: parse_addresses(settings.namesrv_addr))
    faults.attempt(lambda: parse_allowed(settings.ha_slave_addresses))
    faults.attempt(lambda: server_tls(settings, loaded.label))
    faults.attempt(lambda: client_tls(settings, loaded.label))
    if settings.enable_d_leger_commit_log:
        faults.add(
            "enableDLegerCommitLog=true: DLedger is not supported; set groupRecord for a broker"
            " group with failover, or set it to false"
        )
    _check_copies_settings(loaded, faults)
    if settings.group_record:
        faults.attempt(lambda: check_members(settings, loaded.label))
    elif settings.broker_role is BrokerRole.SLAVE and settings.broker_id <= MASTER_ID:
        faults.add(
            f"brokerRole=SLAVE needs {loaded.label('brokerId')} above 0, not {settings.broker_id}:"
            " a number that no other slave of this brokerName has"
        )
    faults.raise_all()


def _check_copies_settings(loaded: Loaded[BrokerSettings], faults: Faults) -> None:
    """Check the settings that have an effect only in a broker group."""
    settings, label = loaded.value, loaded.label
    given = {
        "controlPort": settings.control_port if settings.control_port >= 0 else "",
        "groupAddress": settings.group_address,
        "groupKeyFile": settings.group_key_file,
        "roleHook": settings.role_hook,
    }
    for name, value in given.items():
        if value != "" and not settings.group_record:
            faults.add(
                f"{label(name)}={value} has no effect without groupRecord: set both, or neither"
            )
    if settings.group_key_file:
        path = Path(settings.group_key_file).expanduser()
        faults.attempt(lambda: KeyFile(path, label("groupKeyFile")))
    if settings.role_hook:
        faults.attempt(lambda: check_hook(settings.role_hook, setting=label("roleHook")))


def check_places(
    loaded: Loaded[BrokerSettings],
    ports: Ports,
    *,
    ha_setting: str | None = None,
    others: Iterable[tuple[int, str]] = (),
) -> None:
    """Refuse equal ports, and addresses that cannot be resolved; try no port.

    `ha_setting` tells users how to choose the port for slaves if the program has no option for it.
    `others` are ports of other servers in the program, with their settings.
    """
    own = _own_ports(loaded, ports, ha_setting)
    check_different([*own, *((*other, "") for other in others)])
    for address in (advertised(loaded, ports.main), shared_address(loaded)):
        if address is not None:
            packed_host(address.host, address.port, setting=address.setting)


def _own_ports(
    loaded: Loaded[BrokerSettings], ports: Ports, ha_setting: str | None
) -> tuple[tuple[int, str, str], ...]:
    main_setting = loaded.label("listenPort")
    return (
        (ports.main, main_setting, ""),
        (ports.vip or 0, main_setting, VIP_NOTE),
        (ports.ha, ha_setting or loaded.label("haListenPort"), HA_NOTE),
    )


def check_environment(
    loaded: Loaded[BrokerSettings],
    ports: Ports,
    *,
    ha_setting: str | None = None,
    others: Iterable[tuple[int, str]] = (),
) -> None:
    """Refuse ports and addresses that cannot be used, after `check_places`."""
    check_places(loaded, ports, ha_setting=ha_setting, others=others)
    for port, setting, note in _own_ports(loaded, ports, ha_setting):
        check_port(
            loaded.value.bind_address,
            port,
            setting=setting,
            host_setting=loaded.label("bindAddress"),
            note=note,
        )


def warn_of_ineffective(loaded: Loaded[BrokerSettings], log: Log) -> None:
    """Warn of settings that are accepted but have no effect in this broker."""
    settings = loaded.value
    if ineffective := loaded.ineffective():
        log.warning("settings.ineffective", settings=ineffective)
    has_fixed_role = not settings.group_record and settings.broker_role is not BrokerRole.SLAVE
    if has_fixed_role and settings.broker_id > MASTER_ID:
        log.warning("broker.id_ignored", broker_id=settings.broker_id, role=settings.broker_role)
