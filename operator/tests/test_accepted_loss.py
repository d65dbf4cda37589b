# SPDX-License-Identifier: Apache-2.0
"""Passes that carry out an accepted loss, with an API server and brokers in memory."""

from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest
from structlog.testing import CapturingLogger

from cometmq.ha.actions import Status
from cometmq.ha.places.kubernetes import ANNOTATION
from cometmq.ha.record import Copy, Record, encode_record
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.operator.api import ApiUnreachable
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.broker_groups.group import ACCEPT_LOSS
from cometmq.operator.broker_groups.group_elector import GroupElector
from cometmq.operator.broker_groups.group_pass import GroupPass
from cometmq.operator.broker_groups.seen import Election
from cometmq.testing.operator.api import MemoryApi, context_of
from cometmq.testing.runtime.clock import FakeClock

RECORD = Record(
    uid="r", group="orders", epoch=4, holder=Copy(0, "old"), in_sync=(Copy(0, "old"),), copies=2
)
LEASE = ("Lease", "mq", "orders")
STORES = {Copy(0, "new"), Copy(1, "new")}


def lease_of(record, version="7"):
    metadata = {"uid": "l", "resourceVersion": version}
    annotations = {ANNOTATION: encode_record(record).decode()}
    return {"metadata": {**metadata, "annotations": annotations}}


class Api(MemoryApi):
    """The API server with the group and its Lease."""

    def __init__(self):
        super().__init__()
        self.group = self.put_group(paused=True)
        self.put_stateful_set()
        self.lease = lease_of(RECORD)

    @property
    def lease(self):
        return self.objects.get(LEASE)

    @lease.setter
    def lease(self, lease):
        if lease is None:
            self.objects.pop(LEASE, None)
        else:
            self.objects[LEASE] = lease


class FakeElector:
    """Brokers that all crashed, and an elector that waits for a person."""

    def __init__(self, api):
        self.record: Any = RECORD
        self.fault: Any = ("NoCandidate", "no member answers")
        self.statuses = tuple(
            Status(
                copy=copy, role=Role.SLAVE, promised=4, last_log_epoch=4, standing=Standing.SUSPECT
            )
            for copy in sorted(STORES)
        )
        self.asked = (0, 1)
        self.open_master = None
        self.has_looked = self.is_record_known = True
        self.is_accepting_loss = False
        self.accepted = []
        self._api = api

    @property
    def election(self):
        return Election(
            record=self.record, statuses=self.statuses, asked=self.asked, fault=self.fault,
            is_record_known=self.is_record_known, has_looked=self.has_looked,
            is_accepting_loss=self.is_accepting_loss,
        )  # fmt: skip

    async def look_after(self, *_):
        pass

    def accept_loss(self, order):
        assert self._api.lease is None
        self.accepted.append((order.epoch, order.copies))
        self.is_accepting_loss = True
        self.waits()

    def waits(self):
        """There is no record, and a store may have lost messages."""
        self.record, self.fault = None, ("SuspectCopy", "a person has to accept that")

    def creates(self):
        """The elector has created the record, and its round has read it."""
        holder = Copy(1, "new")
        self.record = msgspec.structs.replace(RECORD, epoch=7, holder=holder, in_sync=(holder,))
        self.fault, self.is_accepting_loss = None, False
        self._api.lease = lease_of(self.record)


class Operator:
    def __init__(self):
        self.api = Api()
        self.restart()

    def restart(self):
        self.elector = FakeElector(self.api)
        if self.api.lease is None:
            self.elector.waits()
        self.log = CapturingLogger()
        context = context_of(
            self.api, secrets=AsyncMock(), clock=FakeClock(), log=self.log, quiet_ms=1
        )
        key = (KIND, "mq", "orders")
        self.work = GroupPass(key, context, cast("GroupElector", self.elector))
        drain: Any = self.work._drain
        drain.refuse_sends = AsyncMock()
        drain.backlog = AsyncMock(return_value=None)

    def order(self, value):
        self.api.group["metadata"]["annotations"][ACCEPT_LOSS] = value

    async def look(self):
        """Make a pass; return the result and the text of the last operation."""
        await self.work.run()
        assert ACCEPT_LOSS not in self.api.group["metadata"]["annotations"]
        found = self.api.group["status"].get("lastOperation")
        return found and (found["result"], found["message"])


@pytest.fixture
def operator():
    return Operator()


async def test_the_record_is_deleted_before_the_elector_may_create_the_next(operator):
    operator.order("4")
    assert await operator.look() == ("Started", "")
    assert operator.api.lease is None
    assert operator.elector.accepted == [(4, STORES)]
    assert await operator.look() == ("Started", "")
    operator.elector.creates()
    assert await operator.look() == ("Done", "the store of orders-1 was chosen, for epoch 7")
    await operator.look()
    assert operator.elector.accepted == [(4, STORES)]
    assert operator.work.operations == {("accept-loss", "Started"): 1, ("accept-loss", "Done"): 1}
    told = [
        call.kwargs["text"]
        for call in operator.log.calls
        if call.kwargs.get("reason", "").startswith("Operation")
    ]
    assert told == [
        "accept-loss 4: started",
        "accept-loss 4: the store of orders-1 was chosen, for epoch 7",
    ]


async def test_a_group_without_a_record_has_nothing_to_delete(operator):
    operator.api.lease = None
    operator.elector.waits()
    operator.order("4")
    assert await operator.look() == ("Started", "")
    assert operator.elector.accepted == [(4, STORES)]


async def test_a_record_that_was_renewed_before_its_deletion_is_kept(operator):
    """Someone may have elected: another operator, or a broker that wrote late."""
    operator.order("4")

    def renew(verb, _kind):
        if verb == "delete":
            operator.api.lease = lease_of(RECORD, "8")

    operator.api.before = renew
    result, text = await operator.look()
    assert (result, operator.elector.accepted) == ("Refused", [])
    assert text == "the record has changed since it was judged: look at the group again"
    assert operator.api.lease is not None


@pytest.mark.parametrize(
    "lease",
    [None, {"metadata": {"uid": "l", "resourceVersion": "7"}},
     lease_of(msgspec.structs.replace(RECORD, epoch=5))],
    ids=["gone", "empty", "later"],
)  # fmt: skip
async def test_a_record_that_differs_from_the_one_that_was_judged_is_kept(operator, lease):
    operator.order("4")
    operator.api.lease = lease
    result, text = await operator.look()
    assert (result, operator.elector.accepted) == ("Refused", [])
    assert "the record has changed" in text
    assert operator.api.lease == lease


async def test_after_a_lost_answer_the_order_is_given_again(operator):
    operator.order("4")

    def lose_answer(verb, _kind):
        if verb == "delete":
            operator.api.lease = None
            raise ApiUnreachable("DELETE: no answer")

    operator.api.before = lose_answer
    assert await operator.look() == ("Refused", "DELETE: no answer")
    assert operator.elector.accepted == []
    operator.elector.waits()
    await operator.look()
    assert operator.api.group["status"]["lossEpoch"] == 4
    operator.order("4")
    assert await operator.look() == ("Started", "")


async def test_an_acceptance_that_expires_is_refused_with_the_reason(operator):
    operator.order("4")
    await operator.look()
    operator.elector.is_accepting_loss = False
    operator.elector.fault = ("MembersMissing", "brokers [1] do not answer")
    text = "no record was created in time: brokers [1] do not answer"
    assert await operator.look() == ("Refused", text)
    assert operator.work.operations["accept-loss", "Refused"] == 1


async def test_the_next_operator_reports_the_end_but_accepts_nothing(operator):
    operator.order("4")
    await operator.look()
    operator.restart()
    operator.elector.has_looked = False  # its elector has not read the record yet
    assert await operator.look() == ("Started", "")
    operator.elector.has_looked = True
    text = "no record was created in time: a person has to accept that"
    assert await operator.look() == ("Refused", text)
    assert operator.elector.accepted == []
    operator.order("4")
    await operator.look()
    operator.restart()
    operator.elector.creates()
    assert (await operator.look())[0] == "Done"


async def test_an_order_with_another_epoch_is_refused_and_forgotten(operator):
    operator.order("3")
    result, text = await operator.look()
    assert result == "Refused"
    assert "cometmq.io/accept-loss=4" in text
    assert operator.api.lease is not None
    assert operator.api.group["status"]["lossEpoch"] == 4


async def test_a_group_that_waits_for_a_person_is_not_deleted_without_a_drain(operator):
    """Neither the record nor the status shows that it has data."""
    operator.api.lease = None
    operator.elector.waits()
    await operator.look()
    operator.api.delete_as_user(KIND, "orders")
    await operator.look()
    (condition,) = (
        one for one in operator.api.group["status"]["conditions"] if one["type"] == "Progressing"
    )
    assert condition["reason"] == "BacklogUnknown"
