# SPDX-License-Identifier: Apache-2.0
"""The broker's pages on the HTTP port: metrics, settings and readiness."""

from functools import partial

from cometmq.broker import metrics
from cometmq.broker.broker import Broker
from cometmq.broker.group_metrics import GROUP_FAMILIES
from cometmq.broker.grouping import Grouping
from cometmq.broker.timers import watch_disk
from cometmq.ha.member import Role
from cometmq.remoting.transport.server import Server
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.metrics import StatsCollector
from cometmq.store.writing.write_state import Refusal


def store_fault(broker: Broker) -> str | None:
    """Return why the store accepts no messages, or None; a slave's role is not a fault."""
    reasons = set(broker.store.stats().refusals)
    if not broker.is_master:
        reasons -= {Refusal.ROLE, Refusal.TOO_FEW_COPIES}
    refusals = ", ".join(sorted(reasons))
    return f"the store takes no messages: {refusals}" if refusals else None


def replication_fault(broker: Broker) -> str | None:
    """Return why this slave cannot follow its master, or None."""
    status = broker.replication.following
    if not broker.is_slave or status.unfit is None:
        return None
    return f"the log of the master cannot be followed: {status.unfit_detail}"


def group_fault(group: Grouping) -> str | None:
    """Return why a group member neither serves requests nor follows a master, or None."""
    member = group.member.member
    if member.role in (Role.FENCED, Role.FAILED, Role.RECOVERING) or not member.epoch:
        text = f"this member of the broker group is {member.role}"
        fault = group.member.record_fault
        return f"{text} and cannot read the record: {fault}" if fault else text
    return None


def attach(
    admin: AdminHttp, broker: Broker, server: Server[Broker], group: Grouping | None
) -> None:
    """Add the broker's metrics, settings and readiness to the HTTP port."""

    def table_fault() -> str | None:
        if not broker.saver.is_healthy:
            return "a config table cannot be saved"
        if broker.journal is not None and broker.journal.fault:
            return f"the journal of the tables cannot be written: {broker.journal.fault}"
        return None

    def settings_text() -> str:
        return broker.loaded.as_table()

    broker.is_observed = True
    watch_disk(broker)
    for source in metrics.collectors(broker, server.stats):
        admin.registry.add(source)
    admin.add_ready_check("store", partial(store_fault, broker))
    admin.add_ready_check("tables", table_fault)
    admin.add_ready_check("name", lambda: broker.registration.name_fault)
    if (acl := broker.acl) is not None:
        admin.add_ready_check("accounts", lambda: acl.gap)
        admin.add_ready_warning("accounts", lambda: acl.warning)
    admin.add_ready_check("replication", partial(replication_fault, broker))
    if group is not None:
        labels = metrics.labels(broker)
        admin.registry.add(StatsCollector(GROUP_FAMILIES, lambda: group, labels))
        admin.add_ready_check("group", partial(group_fault, group))
    admin.add_settings("broker", settings_text)
    admin.add_settings("sends", lambda: broker.send_path)
