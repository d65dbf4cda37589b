# SPDX-License-Identifier: Apache-2.0
"""Plans and carries out a switchover that an administrator asks for."""

import asyncio
import time
from typing import Final, NamedTuple

from cometmq.control.controlled import MemberUnreachable
from cometmq.elector.open_group import GroupFailed, OpenGroup
from cometmq.ha import planned
from cometmq.ha.actions import Wait, status_of
from cometmq.ha.member import OrderRefused
from cometmq.ha.orders import HandOver
from cometmq.ha.record import Record

TIMEOUT_MS: Final = 30_000
LOOK_MS: Final = 100


class Planned(NamedTuple):
    record: Record
    master: int
    order: HandOver
    lag_bytes: int
    """What the next master still lacks; the present master delays sends until it is copied."""

    @property
    def in_sync(self) -> list[int]:
        return sorted(copy.ordinal for copy in self.record.in_sync)


async def plan_switchover(group: OpenGroup, to: int | None) -> Planned:
    """Return what a switchover would do; raise GroupFailed with the reason if it cannot be done."""
    found = await group.found()
    if to is not None:
        await group.report_of(to)
    await group.ask()
    if to == found.record.holder.ordinal:
        raise GroupFailed(f"broker {to} is the master already")
    step = planned.switch_over(found.record, group.statuses, to)
    if isinstance(step, Wait):
        fault = group.faults.get(found.record.holder.ordinal)
        why = f" ({fault})" if fault else ""
        raise GroupFailed(f"{step.text}{why}; see cometmq ha status")
    target = status_of(group.statuses, step.order.successor)
    assert target is not None, "the target has answered"
    return Planned(found.record, step.ordinal, step.order, target.lag_bytes)


async def carry_out(group: OpenGroup, plan: Planned) -> tuple[Record, int]:
    """Switch over; return the record that names the open next master, and the duration in ms.

    An order without an answer may have been received. Raise GroupFailed unless the planned target
    becomes the master.
    """
    begun_s = time.monotonic()
    master, target = plan.master, plan.order.successor
    doubt = ""
    try:
        await group.clients[master].order(plan.order)
    except OrderRefused as error:
        raise GroupFailed(f"broker {master} did not hand over: {error}") from error
    except MemberUnreachable as error:
        doubt = f"the order was not answered ({error}), and "
    after = await until_open(group, plan.record.epoch, timeout_s=TIMEOUT_MS / 1000)
    if after is None:
        raise GroupFailed(
            f"{doubt}the next master was not open after {TIMEOUT_MS} ms: see cometmq ha status and"
            " the brokers' logs"
        )
    if after.holder.ordinal != target:
        raise GroupFailed(
            f"{doubt}broker {after.holder.ordinal} was elected in epoch {after.epoch} instead of"
            f" broker {target}: see cometmq ha status and the brokers' logs"
        )
    return after, round((time.monotonic() - begun_s) * 1000)


async def until_open(group: OpenGroup, epoch: int, timeout_s: float) -> Record | None:
    """Wait for a record with a later epoch whose master is open; return None after the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = await group.read()
        if found is not None and found.record.epoch > epoch:
            await group.ask()
            if group.has_master(found.record):
                return found.record
        await asyncio.sleep(LOOK_MS / 1000)
    return None
