# SPDX-License-Identifier: Apache-2.0
"""The methods of the control API, for both ends: names, requests, and effects of orders."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from cometmq.control.controlled import Controlled
from cometmq.control.v1 import control_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["GroupControl"].full_name
REASON_KEY: Final = "cometmq-reason"
"""The key of a refusal's reason in the trailing metadata."""


class Order(NamedTuple):
    """One method that changes the member; the answer is the member's status afterwards."""

    request: Any
    perform: Callable[[Controlled, Any], Awaitable[None]]


ORDERS: Final[Mapping[str, Order]] = {
    "Promote": Order(pb.PromoteRequest, lambda member, it: member.promote(it.epoch)),
    "Follow": Order(pb.FollowRequest, lambda member, it: member.follow(it.epoch, it.master)),
    "Fence": Order(pb.FenceRequest, lambda member, it: member.fence(it.epoch)),
    "HandOver": Order(
        pb.HandOverRequest, lambda member, it: member.hand_over(it.successor, leaves=it.leaves)
    ),
    "Drop": Order(pb.DropRequest, lambda member, it: member.drop(it.ordinal)),
    "Resize": Order(pb.ResizeRequest, lambda member, it: member.resize(it.copies)),
    "Rebuild": Order(pb.RebuildRequest, lambda member, _it: member.rebuild()),
}
