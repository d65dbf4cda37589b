# SPDX-License-Identifier: Apache-2.0
"""Headers for ending transactions and for asking about their state.

`AskTransactionState` and `SetTransactionAside` are CometMQ's own. A RocketMQ broker itself decides
when to ask a producer; here the txn-checker decides and instructs the broker.
"""

from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header


class EndTransaction(Header, frozen=True):
    """Commit (8) or roll back (12) a half message, or leave it open (0)."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(Header, frozen=True):
    """Ask a producer how the transaction of a half message ended."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessage(Header, frozen=True):
    """Make the broker resume checking a half message that it had set aside."""

    msg_id: str | None = None


class AskTransactionState(Header, frozen=True):
    """Make the broker ask a producer in the half message's group how the transaction ended."""

    commit_log_offset: Int64
    tran_state_table_offset: Int64
    """The half message's offset in its queue."""


class AskTransactionStateReply(Header, frozen=True):
    """Whether the half message is still open, and which producer was asked."""

    is_ended: bool = False
    producer_address: str | None = None


class SetTransactionAside(Header, frozen=True):
    """Make the broker set aside a half message whose outcome no producer knows."""

    commit_log_offset: Int64
    tran_state_table_offset: Int64
