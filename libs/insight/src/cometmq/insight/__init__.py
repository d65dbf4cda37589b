# SPDX-License-Identifier: Apache-2.0
"""What goes on in a cluster: one model for the console and the command line.

`look` asks all brokers once, `Watch` keeps looking, `findings` says what is wrong.
"""

from cometmq.insight.findings import Finding, Severity, findings
from cometmq.insight.history import History
from cometmq.insight.model import Since, Snapshot, Unknown, Unreachable
from cometmq.insight.snapshot import Watch, look

__all__ = [
    "Finding",
    "History",
    "Severity",
    "Since",
    "Snapshot",
    "Unknown",
    "Unreachable",
    "Watch",
    "findings",
    "look",
]
