# SPDX-License-Identifier: Apache-2.0
"""Texts for operators about why a broker is not ready or at risk."""

from cometmq.broker.broker import Broker
from cometmq.store.writing.write_state import Refusal


def store_fault(broker: Broker) -> str | None:
    """Return why the store accepts no messages; None if it does, or only the role forbids it."""
    reasons = set(broker.store.write_state.refusals)
    if not broker.role.is_master:
        reasons -= {Refusal.ROLE, Refusal.TOO_FEW_COPIES}
    refusals = ", ".join(sorted(reasons))
    return f"the store takes no messages: {refusals}" if refusals else None


def table_fault(broker: Broker) -> str | None:
    """Return why table changes are not durable, or None."""
    if not broker.tables.saver.is_healthy:
        return "a config table cannot be saved"
    if broker.tables.journal is not None and broker.tables.journal.fault:
        return f"the journal of the tables cannot be written: {broker.tables.journal.fault}"
    return None


def elector_gap(broker: Broker) -> str | None:
    """Return a warning if no elector would replace this group's master, otherwise None."""
    if broker.replication.elector_count() != 0:
        return None
    return (
        "no elector looks after this member of the broker group, so a lost master is not replaced:"
        " start one, or look at its /readyz and its log"
    )


def replication_fault(broker: Broker) -> str | None:
    """Return why this slave cannot follow its master, or None."""
    status = broker.replication.following
    if not broker.role.is_slave or status.unfit is None:
        return None
    return f"the log of the master cannot be followed: {status.unfit_detail}"
