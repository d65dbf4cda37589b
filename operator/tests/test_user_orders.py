# SPDX-License-Identifier: Apache-2.0
"""Tables that map an annotation and a state to the call that carries out the order, or to its
refusal.
"""

from typing import Any

import msgspec
import pytest

from cometmq.ha.actions import Status, Tell
from cometmq.ha.orders import Fence, HandOver, Rebuild
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.operator.broker_groups import user_orders
from cometmq.operator.broker_groups.group import ACCEPT_LOSS, FENCE, REBUILD, SWITCHOVER
from cometmq.operator.broker_groups.user_orders import AcceptLoss, Refused
from cometmq.testing.operator.states import READY, copy, group, seen

THREE = seen(READY, READY, READY)
SILENT = seen(READY, READY, READY, statuses=THREE.statuses[:2])
CLOSED = seen(READY, READY, READY, statuses=THREE.statuses[1:])
LAGGING = seen(READY, READY, READY, out=(2,))
RECORD: Any = THREE.record
REPLACED = msgspec.structs.replace(
    THREE, record=msgspec.structs.replace(RECORD, holder=copy(1), epoch=6)
)


def crashed(role=Role.SLAVE, **more):
    """Return a state in which every broker answers with a store that the record does not name."""
    statuses = [
        Status(copy=Copy(one, "new"), role=role, promised=6 + one, standing=Standing.SUSPECT)
        for one in range(3)
    ]
    facts = {"asked": (0, 1, 2), "election_fault": NO_CANDIDATE, "statuses": tuple(statuses)}
    return seen(READY, READY, READY, **{**facts, **more})


NO_CANDIDATE = ("NoCandidate", "no member of the in-sync set answers")
SUSPECT = ("SuspectCopy", "stores may have lost messages")
MISSING = ("MembersMissing", "brokers [2] do not answer")
CRASHED = crashed()
STORES = frozenset(one.copy for one in CRASHED.statuses)
RECOVERING = msgspec.structs.replace(CRASHED.statuses[2], role=Role.RECOVERING)
STILL_MASTER = msgspec.structs.replace(CRASHED.statuses[1], role=Role.MASTER)

PLANS: dict[str, Any] = {
    "to the best slave": (SWITCHOVER, "auto", THREE, Tell(0, HandOver(1))),
    "to a slave": (SWITCHOVER, "orders-2", THREE, Tell(0, HandOver(2))),
    "to another group": (SWITCHOVER, "billing-0", THREE, "'billing-0' is not a pod of the group"),
    "fence the master": (FENCE, "orders-0", THREE, Tell(0, Fence(5))),
    "fence a master that was replaced": (FENCE, "orders-0", REPLACED, Tell(0, Fence(7))),
    "fence without a record": (
        FENCE, "orders-0", seen(READY, READY, record=None), Tell(0, Fence(5)),
    ),
    "fence a slave": (FENCE, "orders-1", THREE, "orders-1 is slave, not the master"),
    "fence a silent pod": (FENCE, "orders-2", SILENT, "orders-2 does not answer"),
    "fence has no best": (FENCE, "auto", THREE, "'auto' is not a pod of the group; use orders-0"),
    "rebuild a slave": (REBUILD, "orders-2", THREE, Tell(2, Rebuild())),
    "rebuild a slave that lags": (REBUILD, "orders-2", LAGGING, Tell(2, Rebuild())),
    "rebuild the master": (REBUILD, "orders-0", THREE, "orders-0 is the master: switch over first"),
    "rebuild a silent pod": (REBUILD, "orders-2", SILENT, "delete its volume claim and the pod"),
    "rebuild without a master": (REBUILD, "orders-2", CLOSED, "there is nothing to copy from"),
    "rebuild one of too few": (REBUILD, "orders-1", LAGGING, "1 copies are in sync, and minInSync"),
    "accept a crash of all hosts": (ACCEPT_LOSS, "4", CRASHED, AcceptLoss(4, RECORD, STORES)),
    "accept a loss without a record": (
        ACCEPT_LOSS, "8", crashed(record=None, election_fault=SUSPECT),
        AcceptLoss(8, None, STORES),
    ),
    "accept an earlier loss": (
        ACCEPT_LOSS, "3", CRASHED, "has the epoch 4, not '3': look at the condition",
    ),
    "accept a loss that had a record": (
        ACCEPT_LOSS, "4", crashed(record=None, election_fault=SUSPECT), "cometmq.io/accept-loss=8",
    ),
    "accept without an epoch": (ACCEPT_LOSS, "true", CRASHED, "has the epoch 4, not 'true'"),
    "accept nothing": (ACCEPT_LOSS, "4", THREE, "the group has a master"),
    "accept during an election": (
        ACCEPT_LOSS, "4", crashed(election_fault=None), "nothing prevents an election",
    ),
    "accept beside a silent broker": (
        ACCEPT_LOSS, "4", crashed(statuses=CRASHED.statuses[:2]), "orders-2 must answer first",
    ),
    "accept beside a broker that recovers its store": (
        ACCEPT_LOSS, "4", crashed(statuses=(*CRASHED.statuses[:2], RECOVERING)),
        "orders-2 must answer first",
    ),
    "accept beside a broker of the set that is not asked": (
        ACCEPT_LOSS, "4",
        crashed(asked=(0, 1), statuses=CRASHED.statuses[:2]), "orders-2 must answer first",
    ),
    "accept without a record beside a silent broker": (
        ACCEPT_LOSS, "7", crashed(record=None, election_fault=MISSING),
        "this does not solve MembersMissing: brokers [2] do not answer",
    ),
    "accept beside a master without a record": (
        ACCEPT_LOSS, "8",
        crashed(record=None, election_fault=("CopyLeftOut", "x"),
                statuses=(CRASHED.statuses[0], STILL_MASTER, CRASHED.statuses[2])),
        "orders-1 still acts as the master: stop it first, with cometmq.io/fence=orders-1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANS)
def test_orders(case):
    annotation, value, state, wanted = PLANS[case]
    one = group(replicas=3, replication={"minInSync": 2})
    one = msgspec.structs.replace(one, annotations={annotation: value, "other": "x"})
    order = user_orders.given(one)
    assert order is not None
    plan = user_orders.plan(one, state, order)
    if isinstance(plan, Refused):
        assert wanted in plan.text
    else:
        assert plan == wanted


def test_a_fence_comes_before_other_orders():
    one = msgspec.structs.replace(
        group(), annotations={REBUILD: "orders-1", SWITCHOVER: "auto", FENCE: "orders-0"}
    )
    order = user_orders.given(one)
    assert order is not None
    assert order.verb == "fence"


def test_a_group_without_orders():
    assert user_orders.given(group()) is None
