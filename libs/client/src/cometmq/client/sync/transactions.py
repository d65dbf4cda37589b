# SPDX-License-Identifier: Apache-2.0
"""The blocking transactional producer."""

from typing import Any

from cometmq.client.application_calls import calling, check_plain_function, explaining, original
from cometmq.client.errors import InvalidArgument
from cometmq.client.hooks import EndHook, TransactionState
from cometmq.client.log import AnyLog
from cometmq.client.message import Message
from cometmq.client.produce.transactions import (
    CheckListener,
    Decision,
    SyncLocalTransaction,
    TransactionSendResult,
    state_of,
)
from cometmq.client.produce.transactions import TransactionProducer as AsyncTransactionProducer
from cometmq.client.settings import TransactionOptions
from cometmq.client.sync.clients import Producer, Transaction


class TransactionProducer(Producer):
    """Sends messages whose delivery depends on a local transaction, as well as ordinary ones.

    Local transactions are plain functions that run in the sending thread, so that they can use its
    database session. `check` is called on another thread, or as a coroutine on the clients' loop.
    """

    OPTIONS = TransactionOptions
    _inner: AsyncTransactionProducer

    @explaining
    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        check: CheckListener,
        execute: SyncLocalTransaction | None = None,
        options: TransactionOptions | None = None,
        log: AnyLog = None,
    ) -> None:
        """`check` answers the brokers' transaction checks.

        `execute`, a plain function, is the default for `send_in_transaction`.
        """
        if execute is not None:
            check_plain_function(execute, "execute", "message", "argument")
        self._inner = AsyncTransactionProducer(
            group, namesrv, check=check, options=options, log=log
        )
        self._execute = execute

    def add_end_hook(self, hook: EndHook) -> None:
        """Call a hook whenever a transaction ends, on the clients' thread."""
        self._inner.add_end_hook(hook)

    def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        execute: SyncLocalTransaction | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """Store a half message, run the local transaction, and send its state to the broker.

        If the transaction raises an exception, the message is rolled back, and the exception is
        raised here.
        """
        if execute is not None:
            check_plain_function(execute, "execute", "message", "argument")
        execute = execute or self._execute
        if execute is None:
            raise InvalidArgument(
                "no local transaction: give `execute` to the producer or to `send_in_transaction`"
            )
        transaction = self.begin(message, timeout_ms=timeout_ms)
        if not transaction.is_safe:
            return transaction.end(TransactionState.ROLLBACK)
        decision = self._decided(execute, transaction.message, argument)
        state = self._inner.judge(transaction.message, decision)
        result = transaction.end(state, decision[1])
        if result.error is not None:
            raise result.error
        return result

    def begin(self, message: Message, *, timeout_ms: int | None = None) -> Transaction:
        """Store a half message; once the outcome is known, call `end` on the returned transaction.

        If a message is resent after an error, it may be stored twice, and the broker asks about
        the half message that was never ended.
        """
        return Transaction.around(self._run(self._inner.begin(message, timeout_ms=timeout_ms)))

    def _decided(self, execute: SyncLocalTransaction, message: Message, argument: Any) -> Decision:
        try:
            with calling(self._inner, "the transaction"):
                return state_of(execute(message, argument)), None
        except Exception as error:  # noqa: BLE001  # application code: an exception is no decision
            return TransactionState.UNKNOWN, original(error)
