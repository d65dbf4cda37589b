# SPDX-License-Identifier: Apache-2.0
"""Serves the control API, which reports the state of this member and accepts orders.

`app` imports this module only if the control port is enabled, because it imports gRPC.
"""

from collections.abc import Callable, Mapping

from cometmq.broker.broker import Broker
from cometmq.broker.copies.discard import why_not
from cometmq.broker.copies.joining import Joined
from cometmq.broker.copies.members import exposure, is_loopback
from cometmq.broker.faults import replication_fault, store_fault
from cometmq.broker.handlers.admin import change_settings
from cometmq.control.controlled import ConfigChange, Report
from cometmq.control.server import ControlServer
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Order, Rebuild
from cometmq.ha.role import Role
from cometmq.remoting.errors import CommandError, SettingsError
from cometmq.runtime.tls_keys import server_tls
from cometmq.runtime.version import VERSION


class MemberControl:
    """Executes orders of electors and operators; see `cometmq.control.controlled.Controlled`."""

    def __init__(self, broker: Broker, copies: Joined, discard: Callable[[], None]) -> None:
        """`discard` makes the broker stop and move its store aside."""
        self._broker = broker
        self._copies = copies
        self._discard = discard

    def report(self) -> Report:
        broker, copies = self._broker, self._copies
        return Report(
            group=broker.settings.broker_name,
            status=copies.member.status(),
            master=copies.member.state.master,
            confirm_offset=copies.roles.confirm_offset,
            record_uid=copies.member.watch.uid,
            version=VERSION,
            fault=store_fault(broker) or replication_fault(broker) or "",
            risk=exposure(broker.settings),
        )

    async def changed(self) -> None:
        await self._copies.member.changed()

    async def obey(self, order: Order) -> None:
        if isinstance(order, Rebuild):
            self._rebuild()
        else:
            await self._copies.member.obey(order)

    async def update_config(self, changes: Mapping[str, str]) -> ConfigChange:
        if unknown := [name for name in changes if not self._broker.config.loaded.knows(name)]:
            raise SettingsError(f"unknown settings: {', '.join(sorted(unknown))}")
        try:
            changed = await change_settings(self._broker, changes, peer="control", must_save=False)
        except CommandError as error:
            raise SettingsError(str(error)) from error
        return ConfigChange(tuple(sorted(changed)))

    def _rebuild(self) -> None:
        status = self._copies.member.status()
        fault = why_not(self._broker.settings)
        if status.role is not Role.SLAVE or not status.epoch:
            fault = (
                f"it is {status.role} in epoch {status.epoch}, not a slave that follows a master"
            )
        if fault:
            raise OrderRefused(
                OrderRefusal.NOT_IN_SYNC,
                f"broker {status.copy.ordinal} cannot discard its store: {fault}",
            )
        self._discard()


async def serve_control(
    broker: Broker, copies: Joined, discard: Callable[[], None]
) -> ControlServer:
    settings = broker.settings
    tls = server_tls(settings, broker.config.loaded.label)
    server = ControlServer(
        MemberControl(broker, copies, discard),
        tls=tls,
        keys=broker.admission.member_keys.current,
        is_proof_needed=lambda: settings.group_key_required,
        log=broker.log,
    )
    host = settings.control_bind_address
    await server.start(
        host, settings.control_port, setting=broker.config.loaded.label("controlPort")
    )
    has_key = bool(settings.group_key_file) and settings.group_key_required
    if tls.need_client_auth != "require" and not has_key and not is_loopback(host):
        broker.log.warning(
            "control.unprotected", host=host, port=server.port,
            action="set groupKeyFile, or tls.server.need.client.auth=require and certificates, or"
            " bind to 127.0.0.1",
        )  # fmt: skip
    return server
