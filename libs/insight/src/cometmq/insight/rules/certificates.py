# SPDX-License-Identifier: Apache-2.0
"""Rules about certificates."""

from collections.abc import Iterator
from typing import Final

from cometmq.insight.finding import Condition, Severity
from cometmq.insight.history import History
from cometmq.insight.model import Snapshot
from cometmq.insight.words import lasting, moment

SOON_S: Final = 21 * 86_400
URGENT_S: Final = 3 * 86_400


def expiring(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find certificates that have expired, or that expire within three weeks."""
    for it in snapshot.certificates:
        left_s = (it.expires_ms - snapshot.taken_ms) / 1000
        if left_s >= SOON_S:
            continue
        file = f"the certificate in {it.what}" if it.what else "the certificate"
        when = f"expires in {lasting(left_s)}" if left_s > 0 else "has expired"
        yield Condition(
            rule="certificate-expires",
            severity=Severity.CRITICAL if left_s < URGENT_S else Severity.WARNING,
            subject=f"{it.where} {it.what}".rstrip(),
            text=f"{file} of {it.where} {when} ({moment(it.expires_ms)})",
            remedy="replace its file: programs load the new one without a restart",
            runbook="certificate-expires.md",
            command="cometmq check certificate",
            page="brokers",
        )
