# SPDX-License-Identifier: Apache-2.0
"""The metric families of a member of a broker group."""

from collections.abc import Iterable
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.copies.joining import Joined
from cometmq.ha import in_sync
from cometmq.ha.role import Role
from cometmq.runtime.metrics import Family, Row, counter, gauge, labelled_gauge


def _roles(copies: Joined) -> Iterable[Row]:
    """Yield a row for every role, so that alerts can rely on all series from the start."""
    current = copies.parts.inbox.member.role
    return [((role.value,), int(role is current)) for role in Role]


def _copies(copies: Joined) -> int:
    leading = copies.current.leading
    return 0 if leading is None else len(in_sync.certain_set(leading.confirmation.view))


def _unconfirmed(copies: Joined) -> int:
    leading = copies.current.leading
    return 0 if leading is None else (view := leading.confirmation.view).end - view.confirmed


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
        "Epoch in which this member leads or follows.", lambda g: g.parts.inbox.member.epoch
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
        lambda g: not g.watch.fault,
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
