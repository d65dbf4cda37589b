# SPDX-License-Identifier: Apache-2.0
"""Headers of the end of transactions and the question about their state."""

import msgspec

from cometmq.remoting.integers import Int32, Int64


class EndTransaction(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Commit (8), roll back (12) or leave open (0) a half message."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask a producer how the transaction of a half message ended."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessage(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Have the broker ask again about a half message that it gave up."""

    msg_id: str | None = None
