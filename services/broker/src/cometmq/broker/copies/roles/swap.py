# SPDX-License-Identifier: Apache-2.0
"""Writes of the record that never raise; after any error, reading it shows the outcome."""

from cometmq.ha.port import UNKNOWN, Outcome, RecordPort
from cometmq.ha.record import Record, RecordDamaged, Versioned


async def swap(port: RecordPort, base: Versioned, record: Record) -> Outcome:
    """Compare and swap; a damaged record counts as an unknown outcome."""
    try:
        return await port.replace(base, record)
    except RecordDamaged:
        return UNKNOWN
