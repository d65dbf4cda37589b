# SPDX-License-Identifier: Apache-2.0
"""Observes listener calls for hooks, message trace and trace context."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

from cometmq.client import trace_context
from cometmq.client.clock import wall_ms
from cometmq.client.hooks import ConsumeContext, ConsumeOutcome, Hooks
from cometmq.client.listener import ConsumeResult, OrderlyAction, OrderlyResult
from cometmq.client.message import MessageExt

R = TypeVar("R", bound=ConsumeResult | OrderlyResult)


class ConsumeWatch:
    """Observes the calls of one consumer's listener."""

    def __init__(
        self, group: str, hooks: Hooks, *, timeout_ms: int, continues_traces: bool
    ) -> None:
        """A call that takes longer than `timeout_ms` counts as timed out, regardless of its
        result.
        """
        self._group = group
        self._hooks = hooks
        self._timeout_ms = timeout_ms
        self._continues_traces = continues_traces

    async def around(
        self, call: Callable[[list[MessageExt]], Awaitable[R]], messages: list[MessageExt]
    ) -> R:
        """Call the listener and return its result."""
        context = ConsumeContext(self._group, tuple(messages), wall_ms(), outcome=None)
        self._hooks.call("before_consume", context)
        context.outcome = ConsumeOutcome.EXCEPTION
        try:
            with trace_context.consuming(messages) if self._continues_traces else nullcontext():
                result = await call(messages)
            context.is_success = _is_success(result, len(messages))
            context.outcome = self._outcome(context)
        finally:
            context.end_ms = wall_ms()
            self._hooks.call("after_consume", context)
        return result

    def polled(self, messages: Sequence[MessageExt]) -> None:
        """Report messages returned by `poll`; the client cannot see how the application uses
        them.
        """
        if not messages:
            return
        context = ConsumeContext(self._group, tuple(messages), wall_ms())
        self._hooks.call("before_consume", context)
        context.end_ms = wall_ms()
        context.outcome = ConsumeOutcome.SUCCESS
        context.is_success = True
        self._hooks.call("after_consume", context)

    def _outcome(self, context: ConsumeContext) -> ConsumeOutcome:
        if wall_ms() - context.begin_ms >= self._timeout_ms:
            return ConsumeOutcome.TIME_OUT
        return ConsumeOutcome.SUCCESS if context.is_success else ConsumeOutcome.FAILED


def _is_success(result: ConsumeResult | OrderlyResult, count: int) -> bool:
    if isinstance(result, OrderlyResult):
        return result.action in {OrderlyAction.COMMIT, OrderlyAction.HOLD}
    return result.consumed_count is None or result.consumed_count >= count
