# SPDX-License-Identifier: Apache-2.0
"""Every replication rule is necessary: without it, the exhaustive check finds a broken promise.

Each case names the bounds in which its rule matters. With all rules in place, a check within these
bounds finds nothing. Without the rule, which a patch or a hook of the model drops, it finds a
counterexample.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from cometmq.ha import election, epochs, in_sync, member, missing_record
from cometmq.ha import record as records
from cometmq.ha.state import Standing
from cometmq.testing.ha.explore import explore
from cometmq.testing.ha.model import Model
from cometmq.testing.ha.world import Bounds

Patch = tuple[Any, str, Any]


class Case(NamedTuple):
    rule: str
    bounds: Bounds
    patches: tuple[Patch, ...] = ()
    model: type[Model] = Model
    states_max: int = 20_000


def always(*_: object, **__: object) -> bool:
    return True


def without(condition: Callable[..., bool]) -> Patch:
    rest = tuple(one for one in in_sync.JOIN_CONDITIONS if one is not condition)
    return in_sync, "JOIN_CONDITIONS", rest


class ReopensEpochs(Model):
    """A burned epoch can be reopened; the epoch file's own check against that is disabled, too."""

    def begin(self, history, epoch, end):
        is_known = epochs.last_epoch(history) == epoch
        return history if is_known else super().begin(history, epoch, end)


class VolatilePromise(ReopensEpochs):
    def save_promise(self, world, ordinal, epoch):
        return world


class SameIncarnation(Model):
    def restarted_state(self, state):
        return state


class TruncatesToTheShorterEnd(Model):
    def truncate(self, node, stream):
        return node.log[: len(stream.log)], node.history


class KeepsEntries(Model):
    """Neither recovery nor truncation removes entries above the end of the log."""

    def recovered_history(self, history, end):
        return history

    def truncate(self, node, stream):
        return super().truncate(node, stream)[0], node.history

    def begin(self, history, epoch, end):
        return super().begin(epochs.truncated(history, end), epoch, end)


class KeepsAcks(Model):
    """A member that becomes master again remembers acknowledgements from its earlier epochs."""

    def first_view(self, world, ordinal, found):
        leading = super().first_view(world, ordinal, found)
        mine = {stream.epoch for stream in world.streams if stream.owner == ordinal}
        for ack in world.acks:
            if ack.epoch in mine and ack.offset <= leading.end:
                leading = in_sync.acked(leading, msgspec.structs.replace(ack, epoch=leading.epoch))
        return leading


class PassesOverSuspects(Model):
    """The elector creates a record from proven stores although a suspect one may have more."""

    def restore(self, statuses, fence_epoch):
        passed_over = (
            msgspec.structs.replace(one, standing=Standing.NEW)
            if one.standing is Standing.SUSPECT
            else one
            for one in statuses
        )
        return missing_record.restore(self.group, tuple(passed_over), fence_epoch, "u2")


CASES = [
    Case(
        "R1: only another version settles a write",
        Bounds(messages=1, epochs=2, writes=1, lost=1),
        ((in_sync, "settles", always),),
    ),
    Case(
        "the confirm offset waits for pending additions",
        Bounds(messages=1, epochs=2, writes=1, lost=1),
        ((in_sync, "maximal_set", lambda leading: leading.base.record.in_sync),),
    ),
    Case(
        "the confirm offset waits for pending removals",
        Bounds(in_sync=2, messages=1, epochs=2, writes=1, lost=1),
        ((in_sync, "maximal_set", lambda leading: leading.possible[-1]),),
    ),
    Case(
        "the winner is a member of the set",
        Bounds(messages=1, epochs=2),
        (
            (election, "may_vote", lambda record, status: status.role.is_candidate),
            (member, "is_named", lambda one, record: record.holder == one.me),
        ),
    ),
    Case(
        "who joins has the confirmed log",
        Bounds(messages=1, epochs=2, writes=1),
        (without(in_sync.has_confirmed_log),),
    ),
    Case(
        "who joins has reached the epoch",
        Bounds(in_sync=2, messages=1, epochs=3, writes=1, host_crashes=1),
        (without(in_sync.has_reached_start),),
    ),
    Case(
        "R7: who joins has the tables",
        Bounds(messages=0, tables=1, epochs=2, writes=1),
        (without(in_sync.has_answered_tables),),
    ),
    Case(
        "masters of stale epochs are refused",
        Bounds(in_sync=2, messages=1, epochs=3, writes=1, crashes=1),
        ((member, "accepts", always),),
    ),
    Case(
        "promises are durable",
        Bounds(in_sync=2, messages=1, epochs=3, writes=1, crashes=1),
        model=VolatilePromise,
    ),
    Case(
        "R2: a store that lost its log is another copy",
        Bounds(messages=1, epochs=2, writes=1, lost=1, host_crashes=1),
        model=SameIncarnation,
    ),
    Case(
        "R2: only the recorded incarnation is promoted",
        Bounds(in_sync=2, messages=1, epochs=2, host_crashes=1),
        (
            (
                member,
                "is_named",
                lambda one, record: record.holder.ordinal == one.me.ordinal,
            ),
        ),
    ),
    Case(
        "R3: followers promise",
        Bounds(
            nodes=3,
            in_sync=3,
            messages=1,
            epochs=3,
            writes=1,
            script=(
                "elector makes 1 master of 2",
                "1 reads the record",
                "1 writes the set 1,2",
            ),
        ),
        ((member, "promise_of_follower", lambda one, epoch: one.promised),),
    ),
    Case(
        "R4: an epoch that was promised before is burned",
        Bounds(messages=1, epochs=2, writes=1, lost=1, crashes=1),
        (
            (
                member,
                "may_open",
                lambda one, record: member.is_named(one, record) and record.epoch >= one.promised,
            ),
        ),
        ReopensEpochs,
    ),
    Case(
        "R5: entries above the end of the log go",
        Bounds(
            nodes=3,
            in_sync=3,
            messages=3,
            epochs=5,
            writes=2,
            host_crashes=1,
            script=(
                "0 appends",
                "1 connects",
                "1 copies",
                "0 appends",
                "elector makes 1 master of 2",
                "1 reads the record",
                "1 appends",
                "2 follows 2",
                "2 connects",
                "2 copies",
                "2 copies",
                "host of 1 crashes at 0",
                "0 reads the record",
                "elector makes 0 master of 3",
                "0 reads the record",
                "1 follows 3",
                "1 connects",
                "1 copies",
                "1 copies",
                "0 hears x' at 2/0",
                "0 writes the set 0,1",
                "elector makes 1 master of 4",
                "1 reads the record",
            ),
        ),
        model=KeepsEntries,
    ),
    Case(
        "a new master knows no acknowledgement",
        Bounds(
            nodes=3,
            in_sync=3,
            messages=2,
            epochs=4,
            writes=1,
            script=(
                "0 appends",
                "1 connects",
                "1 copies",
                "elector makes 2 master of 2",
                "2 reads the record",
                "1 follows 2",
                "1 connects",
                "2 appends",
                "0 reads the record",
                "0 follows 2",
                "0 connects",
                "0 copies",
                "elector makes 0 master of 3",
            ),
        ),
        model=KeepsAcks,
        states_max=5_000,
    ),
    Case(
        "logs are cut to their newest common point",
        Bounds(in_sync=2, messages=2, epochs=3, writes=2),
        model=TruncatesToTheShorterEnd,
    ),
    Case(
        "acknowledgements belong to an epoch",
        Bounds(
            nodes=3,
            in_sync=3,
            messages=2,
            epochs=3,
            writes=1,
            script=(
                "0 appends",
                "1 connects",
                "1 copies",
                "elector makes 2 master of 2",
                "2 reads the record",
            ),
        ),
        ((in_sync, "is_current", always),),
        states_max=5_000,
    ),
    Case(
        "R6: reads wait for the start of the epoch",
        Bounds(in_sync=2, messages=1, epochs=2),
        ((in_sync, "may_read", always),),
    ),
    Case(
        "R8: pending removals do not count",
        Bounds(in_sync=2, min_in_sync=2, messages=1, writes=1, lost=1),
        ((in_sync, "certain_set", lambda leading: leading.base.record.in_sync),),
    ),
    Case(
        "R10: all are fenced before offsets are compared",
        Bounds(in_sync=2, holder=1, messages=1, epochs=3, writes=1, deletions=1),
        ((missing_record, "is_fenced", always),),
    ),
    Case(
        "R10: a damaged store may have been the last copy",
        Bounds(in_sync=2, messages=1, epochs=3, writes=1, host_crashes=1, deletions=1),
        model=PassesOverSuspects,
    ),
    Case(
        "R10: a late write cannot change another record",
        Bounds(messages=1, epochs=3, writes=1, lost=1, deletions=1),
        (
            (
                records,
                "may_replace",
                lambda current, base, record: current is None or current.version == base.version,
            ),
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_is_needed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    report = explore(Model(case.bounds), states_max=case.states_max)
    assert report.violation == "", report
    for target, name, value in case.patches:
        monkeypatch.setattr(target, name, value)
    report = explore(case.model(case.bounds), states_max=case.states_max)
    assert report.violation
