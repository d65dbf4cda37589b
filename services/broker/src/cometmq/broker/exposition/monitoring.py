# SPDX-License-Identifier: Apache-2.0
"""The broker's pages on the HTTP port: metrics, also of a broker group, settings and readiness."""

from collections.abc import Iterable
from functools import partial
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.copies.joining import Joined
from cometmq.broker.exposition import metrics
from cometmq.broker.faults import elector_gap, replication_fault, store_fault, table_fault
from cometmq.broker.timers import watch_disk
from cometmq.ha import in_sync
from cometmq.ha.role import Role
from cometmq.remoting.transport.server import Server
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.metrics import Family, Row, StatsCollector, counter, gauge, labelled_gauge


def _roles(copies: Joined) -> Iterable[Row]:
    """Yield a row for every role, so that alerts can rely on all series from the start."""
    current = copies.member.state.role
    return [((role.value,), int(role is current)) for role in Role]


def _copies(copies: Joined) -> int:
    leading = copies.roles.leading
    return 0 if leading is None else len(in_sync.certain_set(leading.view))


def _unconfirmed(copies: Joined) -> int:
    leading = copies.roles.leading
    return 0 if leading is None else (view := leading.view).end - view.confirmed


ELECTION_FAMILIES: Final[tuple[Family[Broker], ...]] = (
    gauge(
        "cometmq_group_electors",
        "Electors that look after this member; -1 while it cannot know, or without a control port.",
        lambda broker: -1 if (count := broker.replication.elector_count()) is None else count,
    ),
)

COPIES_FAMILIES: Final[tuple[Family[Joined], ...]] = (
    labelled_gauge("cometmq_group_role", "1 for the role of this member.", ("role",), _roles),
    gauge(
        "cometmq_group_epoch",
        "Epoch in which this member leads or follows.", lambda g: g.member.state.epoch
    ),
    gauge(
        "cometmq_group_promised_epoch",
        "Promised epoch; this member follows no master with a lower epoch.",
        lambda g: g.member.status().promised,
    ),
    gauge(
        "cometmq_group_in_sync_copies",
        "Copies in sync, including this member's own; 0 unless it leads.",
        _copies,
    ),
    gauge(
        "cometmq_group_unconfirmed_bytes", "Log bytes that the copies in sync lack; 0 unless this"
        " member leads.", _unconfirmed,
    ),
    gauge(
        "cometmq_group_behind_bytes", "Log bytes that this member's master has but it lacks.",
        lambda g: g.member.status().lag_bytes,
    ),
    gauge(
        "cometmq_group_record_reachable", "1 while the consensus record can be read.",
        lambda g: not g.member.watch.fault,
    ),
    gauge(
        "cometmq_group_held_requests", "Requests waiting for a switchover to end.",
        lambda g: g.parts.gate.diversion.held_count,
    ),
    counter(
        "cometmq_group_forwarded_requests_total", "Requests forwarded to the master.",
        lambda g: g.parts.gate.diversion.forwarded_count,
    ),
)  # fmt: skip


def member_fault(copies: Joined) -> str | None:
    """Return why a member neither serves requests nor follows a master, or None."""
    member = copies.member.state
    if member.role.is_out or not member.epoch:
        text = f"this member of the broker group is {member.role}"
        fault = copies.member.watch.fault
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
