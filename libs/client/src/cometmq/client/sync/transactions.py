# SPDX-License-Identifier: Apache-2.0
"""The blocking transactional producer."""

from typing import Any

from cometmq.client.errors import InvalidArgument
from cometmq.client.hooks import EndHook, TransactionState
from cometmq.client.log import PROGRAM_LOG
from cometmq.client.message import Message
from cometmq.client.produce.transaction_calls import (
    CheckListener,
    Decision,
    SyncLocalTransaction,
    state_of,
)
from cometmq.client.produce.transactions import TransactionProducer as AsyncTransactionProducer
from cometmq.client.produce.transactions import TransactionSendResult
from cometmq.client.settings import TransactionOptions
from cometmq.client.sync.loop import WorkingClient
from cometmq.client.sync.producer import Producer
from cometmq.remoting.log import Log


class TransactionProducer(Producer):
    """Sends messages whose delivery depends on a local transaction, as well as ordinary ones.

    Local transactions run in the sending thread, so that they can use its database session; `check`
    is called on another thread.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        check: CheckListener,
        execute: SyncLocalTransaction | None = None,
        options: TransactionOptions | None = None,
        log: Log = PROGRAM_LOG,
    ) -> None:
        """`check` answers the brokers' transaction checks.

        `execute` is the default for `send_in_transaction`.
        """
        inner = AsyncTransactionProducer(group, namesrv, check=check, options=options, log=log)
        WorkingClient.__init__(self, inner)
        self._transactions = inner
        self._execute = execute

    def add_end_hook(self, hook: EndHook) -> None:
        """Call a hook whenever a transaction ends, on the clients' thread."""
        self._transactions.add_end_hook(hook)

    def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        execute: SyncLocalTransaction | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """Store a half message, run the local transaction, and send its state to the broker."""
        execute = execute or self._execute
        if execute is None:
            raise InvalidArgument("tranExecutor is null: give `execute`")
        transaction = self._run(self._transactions.begin(message, timeout_ms=timeout_ms))
        if not transaction.is_safe:
            return self._run(transaction.end(TransactionState.ROLLBACK))
        state, error = _decided(execute, transaction.message, argument)
        if error is not None:
            self._transactions.note_failure(transaction, error)
        return self._run(transaction.end(state, error))


def _decided(execute: SyncLocalTransaction, message: Message, argument: Any) -> Decision:
    try:
        return state_of(execute(message, argument)), None
    except Exception as error:  # noqa: BLE001  # application code: an exception is no decision
        return TransactionState.UNKNOWN, error
