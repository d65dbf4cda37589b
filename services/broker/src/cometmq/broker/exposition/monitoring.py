# SPDX-License-Identifier: Apache-2.0
"""The broker's pages on the HTTP port: metrics, settings and readiness."""

from functools import partial

from cometmq.broker.broker import Broker
from cometmq.broker.copies.joining import Joined
from cometmq.broker.exposition import metrics
from cometmq.broker.exposition.copies_metrics import COPIES_FAMILIES, ELECTION_FAMILIES
from cometmq.broker.faults import elector_gap, replication_fault, store_fault, table_fault
from cometmq.broker.timers import watch_disk
from cometmq.remoting.transport.server import Server
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.metrics import StatsCollector


def member_fault(copies: Joined) -> str | None:
    """Return why a member neither serves requests nor follows a master, or None."""
    member = copies.parts.inbox.member
    if member.role.is_out or not member.epoch:
        text = f"this member of the broker group is {member.role}"
        fault = copies.watch.fault
        return f"{text} and cannot read the record: {fault}" if fault else text
    return None


def attach(admin: AdminHttp, broker: Broker, server: Server[Broker], copies: Joined | None) -> None:
    """Add the broker's metrics, settings and readiness to the HTTP port."""

    def settings_text() -> str:
        return broker.config.loaded.as_table()

    broker.measured.is_observed = True
    watch_disk(broker)
    for source in metrics.collectors(broker, server.stats):
        admin.registry.add(source)
    admin.add_ready_check("store", partial(store_fault, broker))
    admin.add_ready_check("tables", partial(table_fault, broker))
    admin.add_ready_check("name", lambda: broker.registration.name_fault)
    admin.add_ready_check("routes", lambda: broker.registration.route_fault)
    admin.add_ready_warning("routes", lambda: broker.registration.route_gap)
    if (acl := broker.admission.acl) is not None:
        admin.add_ready_check("accounts", lambda: acl.gap)
        admin.add_ready_warning("accounts", lambda: acl.warning)
    admin.add_ready_check("replication", partial(replication_fault, broker))
    if copies is not None:
        labels = metrics.labels(broker)
        admin.registry.add(StatsCollector(COPIES_FAMILIES, lambda: copies, labels))
        admin.add_ready_check("group", partial(member_fault, copies))
        # Only a warning: the broker serves requests, and a fault would remove it from the Service.
        admin.add_ready_warning("elector", partial(elector_gap, broker))
        admin.registry.add(StatsCollector(ELECTION_FAMILIES, lambda: broker, labels))
    admin.add_settings("broker", settings_text)
    admin.add_settings("sends", lambda: broker.process.send_path)
