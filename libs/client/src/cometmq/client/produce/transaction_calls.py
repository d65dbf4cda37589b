# SPDX-License-Identifier: Apache-2.0
"""Calls the local transactions and check listeners that applications write."""

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, cast

from cometmq.client.application_calls import calling, on_thread, original
from cometmq.client.functions import is_coroutine_function
from cometmq.client.hooks import TransactionState
from cometmq.client.listener import ListenerError
from cometmq.client.message import Message, MessageExt
from cometmq.client.shown import shown

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
                if is_coroutine_function(function):
                    answer = await cast("Awaitable[Any]", function(*arguments))
                else:
                    answer = await on_thread(self._pool, function, *arguments)
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
