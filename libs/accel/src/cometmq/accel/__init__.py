# SPDX-License-Identifier: Apache-2.0
"""The native message path: each call processes a whole batch, such as

- the plain sends of a commit, or the plain pulls of a chunk;
- the plain records of a range of the log, or the due messages of a delay level;
- the checksums of a piece of the log, the writes of a checkpoint, or a sync of the log.
"""

from cometmq.accel._native import (
    INTERFACE,
    DueRecords,
    LaneAccounts,
    LaneAnswers,
    LaneKeys,
    LaneRuns,
    LentAnswers,
    Loan,
    LogSyncer,
    PanicException,
    PullLane,
    SendLane,
    Sockets,
    TlsContext,
    TlsFault,
    TlsSession,
    block_sums,
    follow_headers,
    matches,
    read_range,
    select_due,
    sync_files,
    write_files,
)

__all__ = [
    "INTERFACE",
    "DueRecords",
    "LaneAccounts",
    "LaneAnswers",
    "LaneKeys",
    "LaneRuns",
    "LentAnswers",
    "Loan",
    "LogSyncer",
    "PanicException",
    "PullLane",
    "SendLane",
    "Sockets",
    "TlsContext",
    "TlsFault",
    "TlsSession",
    "block_sums",
    "follow_headers",
    "matches",
    "read_range",
    "select_due",
    "sync_files",
    "write_files",
]
