# SPDX-License-Identifier: Apache-2.0
"""Passes one message to the listener at the request of an administrator."""

from typing import Final

from cometmq.client.application_calls import original
from cometmq.client.clock import monotonic_ms
from cometmq.client.listener import AnyCaller, ConsumeResult, OrderlyAction, OrderlyResult
from cometmq.client.message import MessageExt
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.transport.tasks import describe

_ORDERLY_NAMES: Final = {
    OrderlyAction.COMMIT: "CR_SUCCESS",
    OrderlyAction.HOLD: "CR_SUCCESS",
    OrderlyAction.ROLLBACK: "CR_ROLLBACK",
    OrderlyAction.SUSPEND: "CR_LATER",
}


async def consume_directly(caller: AnyCaller, message: MessageExt) -> ConsumeMessageDirectlyResult:
    """Pass one message to the listener now, and return its result."""
    begin_ms = monotonic_ms()
    answer = ConsumeMessageDirectlyResult(order=caller.is_orderly)
    try:
        result: ConsumeResult | OrderlyResult = await caller.call([message])
    except Exception as error:  # noqa: BLE001  # application code: the administrator receives the error
        answer.consume_result, answer.remark = "CR_THROW_EXCEPTION", describe(original(error))
    else:
        if isinstance(result, OrderlyResult):
            answer.consume_result = _ORDERLY_NAMES[result.action]
            answer.auto_commit = result.action is not OrderlyAction.HOLD
        else:
            is_consumed = result.consumed_count is None or result.consumed_count > 0
            answer.consume_result = "CR_SUCCESS" if is_consumed else "CR_LATER"
    answer.spent_time_mills = monotonic_ms() - begin_ms
    return answer
