# SPDX-License-Identifier: Apache-2.0
"""Transactional producers: a message is delivered only if a local transaction commits.

First a half message is stored where no consumer sees it, then the local transaction runs, and then
its state is sent to the broker. If the state does not arrive, the broker asks any producer of the
group for it.

Compatibility: results mean the same as in the Java client 4.9.4. The state is sent oneway, so a
lost request leaves the transaction open.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

import msgspec

from cometmq.client.application_calls import (
    called,
    calling,
    check_function,
    check_hook,
    leave_calls,
    original,
)
from cometmq.client.arguments import whole_or
from cometmq.client.clock import TimeLimit, wall_ms
from cometmq.client.cluster.broker_requests import TransactionMember
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.errors import ClientStateError, InvalidArgument, shown
from cometmq.client.hooks import EndContext, EndHook, Hooks, TransactionState
from cometmq.client.listener import ListenerError, traced
from cometmq.client.log import AnyLog
from cometmq.client.message import Message, MessageExt, SendResult, SendStatus, plain_body, received
from cometmq.client.option_checks import checked
from cometmq.client.produce.producer import Producer
from cometmq.client.settings import TransactionOptions
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.transactions import CheckTransactionState, EndTransaction
from cometmq.remoting.errors import CometError, CorruptRecord, RemoteProtocolError
from cometmq.remoting.message.flags import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.transport.tasks import TaskSet, describe

Answer: TypeAlias = TransactionState | None
Decision: TypeAlias = tuple[TransactionState, BaseException | None]

LocalTransaction: TypeAlias = Callable[[Message, Any], Answer | Awaitable[Answer]]
"""The local work of a transaction; the message's id identifies it."""

SyncLocalTransaction: TypeAlias = Callable[[Message, Any], Answer]
"""Like LocalTransaction, but a plain function."""

CheckListener: TypeAlias = Callable[[MessageExt], Answer | Awaitable[Answer]]
"""Determines the state of a message's transaction, which another process may have begun."""


class StateCaller:
    """Calls coroutine functions on the loop, and plain functions on a bounded thread pool."""

    def __init__(self, thread_count: int, *, name: str, client: object) -> None:
        """Threads are created on demand; the functions cannot close `client`."""
        self._name = f"the {name}"
        self._client = client
        self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix=f"cometmq-{name}")

    async def call(self, function: Callable[..., Any], *arguments: object) -> Decision:
        """Return the decision, which is UNKNOWN if the function raises or returns no state."""
        try:
            with calling(self._client, self._name):
                answer = await called(function, *arguments, pool=self._pool)
            return state_of(answer), None
        except Exception as error:  # noqa: BLE001  # application code: an exception is no decision
            return TransactionState.UNKNOWN, original(error)

    def close(self) -> None:
        """Release the threads, without waiting for running calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def state_of(answer: object) -> TransactionState:
    """Convert the result of a call; raise ListenerError if it is not a state or None."""
    if answer is None:
        return TransactionState.UNKNOWN
    if not isinstance(answer, TransactionState):
        raise ListenerError(
            f"a transaction ends with a TransactionState (COMMIT, ROLLBACK, UNKNOWN) or None, not "
            f"with {shown(answer)}"
        )
    return answer


def state_after(decision: Decision, *, rolls_back: bool) -> TransactionState:
    """Return the state of a local transaction: with `rolls_back`, ROLLBACK if it raised an
    exception.

    A function that returned something else than a state may have committed its work. So may one
    that was interrupted by something other than an `Exception`.
    """
    state, error = decision
    is_failed = isinstance(error, Exception) and not isinstance(error, ListenerError)
    return TransactionState.ROLLBACK if is_failed and rolls_back else state


CHECK_ANSWER_TIMEOUT_MS: Final = 3_000
_IMMUNITY: Final = PropertyKey.CHECK_IMMUNITY_TIME_IN_SECONDS.value
_ENDS: Final = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: TRANSACTION_NONE,
}


class TransactionSendResult(SendResult, frozen=True):
    """Where a half message was stored, and the state that was sent to the broker."""

    state: TransactionState
    error: BaseException | None = None
    """The exception that the local transaction raised; the broker will ask for the state."""


class Transaction:
    """A stored half message, which is delivered if `end` is called with COMMIT."""

    def __init__(self, message: Message, result: SendResult, tell: "Tell") -> None:
        """`tell` sends the state to the broker; `message` includes its unique key."""
        self._tell = tell
        self._final: TransactionState | None = None
        self.message = message
        """The message, including its unique key."""
        self.result = result
        """Where the half message is stored."""

    @property
    def transaction_id(self) -> str:
        """The unique key, which the check listener receives as `message_id`."""
        return self.result.message_id

    @property
    def is_safe(self) -> bool:
        """Whether the half message is stored as safely as configured; if not, roll back."""
        return self.result.status is SendStatus.SEND_OK

    async def end(
        self, state: TransactionState, error: BaseException | None = None
    ) -> TransactionSendResult:
        """Send the state to the broker, which asks again after UNKNOWN; a failure is only logged.

        COMMIT and ROLLBACK are final: repeating the same state does nothing, and any other state
        raises ClientStateError.
        """
        if not isinstance(state, TransactionState):
            raise InvalidArgument(
                f"a transaction ends with TransactionState.COMMIT, ROLLBACK or UNKNOWN, not with "
                f"{shown(state)}"
            )
        if self._final is None:
            self._final = None if state is TransactionState.UNKNOWN else state
            await self._tell(self, state)
        elif state is not self._final:
            raise ClientStateError(
                f"the transaction {self.transaction_id} has ended with {self._final.name}: it "
                f"cannot end with {state.name} too"
            )
        result = self.result
        return TransactionSendResult(
            result.status,
            result.message_id,
            result.offset_message_id,
            result.queue,
            result.queue_offset,
            state,
            error,
        )


Tell: TypeAlias = Callable[[Transaction, TransactionState], Awaitable[None]]


class _Question(msgspec.Struct, frozen=True):
    """A broker's request for the state of a transaction."""

    header: CheckTransactionState
    record: MessageRecord
    address: str


class TransactionProducer(Producer, TransactionMember):
    """Sends messages whose delivery depends on a local transaction, as well as ordinary ones.

    Producers of the group must remain connected, because brokers ask them about open transactions.
    `execute` and `check` may be coroutine functions, or plain functions, which run on threads.
    """

    OPTIONS = TransactionOptions
    options: TransactionOptions

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        check: CheckListener,
        execute: LocalTransaction | None = None,
        options: TransactionOptions | None = None,
        log: AnyLog = None,
    ) -> None:
        """`check` answers the brokers; `execute` is the default of `send_in_transaction`."""
        check_function(check, "check", "message")
        if execute is not None:
            check_function(execute, "execute", "message", "argument")
        super().__init__(
            group,
            namesrv,
            options=checked(
                TransactionOptions() if options is None else options, kind=TransactionOptions
            ),
            log=log,
        )
        self._check = check
        self._execute = execute
        self._end_hooks: list[EndHook] = []
        self._ending = Hooks((), self._log)
        self._properties = {
            PropertyKey.TRANSACTION_PREPARED.value: "true",
            PropertyKey.PRODUCER_GROUP.value: self._full_group,
        }
        self._questions: asyncio.Queue[_Question] = asyncio.Queue(self.options.pending_checks_max)
        self._execute_caller: StateCaller
        self._check_caller: StateCaller

    def add_end_hook(self, hook: EndHook) -> None:
        """Call a hook whenever a transaction ends; add it before `start`."""
        self._check_unstarted()
        check_hook(hook, "end_transaction")
        self._end_hooks.append(hook)

    # -- life ---------------------------------------------------------------------------------

    async def _enter(self, stack: AsyncExitStack) -> ClientInstance:
        """Connect as a producer that brokers may ask about transactions."""
        options = self.options
        self._execute_caller = StateCaller(
            options.execute_concurrency, name="transaction", client=self
        )
        self._check_caller = StateCaller(options.check_concurrency, name="check", client=self)
        stack.callback(self._execute_caller.close)
        stack.callback(self._check_caller.close)
        instance = await super()._enter(stack)
        hooks = self._end_hooks if self._trace is None else [*self._end_hooks, self._trace]
        self._ending = Hooks(hooks, self._log)
        background = TaskSet(self._log)
        stack.push_async_callback(
            leave_calls, background, callback="check", group=self.group, log=self._log
        )
        instance.members.transaction_producers[self._full_group] = self
        stack.callback(instance.members.transaction_producers.pop, self._full_group)
        for number in range(options.check_concurrency):
            background.keep(self._answer_questions, name=f"transaction-checks-{number}")
        return instance

    # -- transactions -------------------------------------------------------------------------

    async def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        execute: LocalTransaction | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """Store a half message, run the local transaction, and send its state to the broker.

        If the transaction raises an exception, the message is rolled back, and the exception is
        raised here. If it returns None, it remains open and the broker will ask. If the half
        message is not stored safely, the transaction does not run and the result is ROLLBACK.
        """
        if execute is not None:
            check_function(execute, "execute", "message", "argument")
        elif self._execute is not None:
            execute = self._execute
        else:
            raise InvalidArgument(
                "no local transaction: give `execute` to the producer or to `send_in_transaction`"
            )
        transaction = await self.begin(message, timeout_ms=timeout_ms)
        if not transaction.is_safe:
            return await transaction.end(TransactionState.ROLLBACK)
        caller = self._execute_caller
        decision = await caller.call(execute, transaction.message, argument)
        state = self.judge(transaction.message, decision)
        result = await transaction.end(state, decision[1])
        if result.error is not None:
            raise result.error
        return result

    def judge(self, message: Message, decision: Decision) -> TransactionState:
        """Return the state of a local transaction; log its exception, if it raised one."""
        state = state_after(decision, rolls_back=self.options.rollback_on_error)
        if (error := decision[1]) is not None:
            self._log.warning(
                "transaction.failed",
                state=state.name,
                group=self.group,
                topic=message.topic,
                transaction=message.message_id,
                error=describe(error),
                exc_info=traced(error),
            )
        return state

    async def begin(self, message: Message, *, timeout_ms: int | None = None) -> Transaction:
        """Store a half message; once the outcome is known, call `end` on the returned transaction.

        If a message is resent after an error, it may be stored twice, and the broker asks about
        the half message that was never ended.
        """
        sender = self._sending()
        timeout_ms = whole_or(self.options.send_timeout_ms, timeout_ms, "timeout_ms")
        prepared = sender.outgoing.prepare(message, extra=self._properties)
        _check_half(message)
        prepared.sys_flag |= TRANSACTION_PREPARED
        async with self._room:
            await sender.outgoing.compress(prepared)
            result = await sender.send(prepared, TimeLimit.from_now(timeout_ms))
        try:  # before the local transaction runs: its end must be told with this id
            parse_offset_message_id(result.offset_message_id)
        except ValueError as error:
            raise RemoteProtocolError(
                f"broker {result.queue.broker_name} answers a half message without its id"
                f" ({error}): check this broker"
            ) from error
        message = msgspec.structs.replace(prepared.messages[0], message_id=result.message_id)
        return Transaction(message, result, self._end)

    async def _end(self, transaction: Transaction, state: TransactionState) -> None:
        result = transaction.result
        header = EndTransaction(
            producer_group=self._full_group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=parse_offset_message_id(result.offset_message_id).physical_offset,
            commit_or_rollback=_ENDS[state],
            msg_id=result.message_id,
        )
        await self._tell(
            lambda: self._running().master(result.queue.broker_name),
            header,
            transaction.message,
            state,
            self.options.send_timeout_ms,
        )

    async def _tell(
        self,
        address_of: Callable[[], str],
        header: EndTransaction,
        message: Message | MessageExt,
        state: TransactionState,
        timeout_ms: int,
    ) -> None:
        """Send a state to the broker at the address that a function returns; log a failure."""
        try:
            address = address_of()
            self._ending.call(
                "end_transaction",
                EndContext(
                    group=self._full_group,
                    message=message,
                    message_id=header.msg_id,
                    transaction_id=message.message_id,
                    state=state,
                    is_from_check=header.from_transaction_check,
                    address=address,
                    time_ms=wall_ms(),
                ),
            )
            await self._sending().invoke_oneway(
                address, RequestCode.END_TRANSACTION, header, timeout_ms=timeout_ms
            )
        except CometError as error:
            self._log.warning(
                "transaction.untold",
                transaction=header.msg_id,
                state=state.value,
                error=describe(error),
            )

    # -- questions from brokers ---------------------------------------------------------------

    def check(self, header: CheckTransactionState, record: MessageRecord, address: str) -> None:
        """Queue a check; excess checks are dropped, because the broker repeats them later."""
        try:
            self._questions.put_nowait(_Question(header, record, address))
        except asyncio.QueueFull:
            self._log.warning("transaction.unchecked", peer=address, error="too many questions")

    async def _answer_questions(self) -> None:
        while True:
            await self._answer(await self._questions.get())

    async def _answer(self, question: _Question) -> None:
        asked, record = question.header, question.record
        try:
            body = await plain_body(record.body, record.sys_flag)
        except CorruptRecord as corrupt:
            why = describe(corrupt)
            self._log.warning("transaction.unchecked", peer=question.address, error=why)
            return
        message = received(record, "", self._namespace, body=body)
        state, error = await self._check_caller.call(self._check, message)
        if error is not None:
            self._log.warning(
                "transaction.check_failed",
                group=self.group,
                topic=message.topic,
                transaction=message.message_id,
                error=describe(error),
                exc_info=traced(error),
            )
        header = EndTransaction(
            producer_group=self._full_group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=_ENDS[state],
            msg_id=message.message_id,
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
        )
        timeout_ms = CHECK_ANSWER_TIMEOUT_MS
        await self._tell(lambda: question.address, header, message, state, timeout_ms)


def _check_half(message: Message) -> None:
    """Raise InvalidArgument for what has no effect, or not the expected one, in a transaction."""
    if message.delay_level:
        raise InvalidArgument(
            "a message in a transaction cannot have a delay level: send it without "
            "`delay_level`, or outside the transaction"
        )
    seconds = message.properties.get(_IMMUNITY, "0")
    if not (seconds.isascii() and seconds.isdecimal()):
        raise InvalidArgument(
            f"the property {_IMMUNITY} must be a number of seconds, not {shown(seconds)}: brokers "
            "would ignore it"
        )
