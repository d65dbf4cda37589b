# SPDX-License-Identifier: Apache-2.0
"""Drops the rules of the protocol one at a time; the simulator must detect each omission.

A mutation patches the simulated programs, and restricts the runs to groups and faults for which its
rule matters. The programs themselves contain no switches for this.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from tests.sim.plan import Plan, draw_usual

from cometmq.broker.copies.gate import diversion
from cometmq.broker.copies.streams import handshake, master_stream, replica
from cometmq.broker.tables import journal_files
from cometmq.ha import actions, election, epochs, in_sync, member, missing_record
from cometmq.ha import record as records
from cometmq.ha import state as states
from cometmq.store.journal import JournalContent, collect
from cometmq.store.replica import Replica

Patch = tuple[Any, str, Any]
Changes = Mapping[str, Any]

QUICK: Final[Changes] = {
    "min_in_sync": 1, "electors": 1, "chaos_s": 3.0, "pause_s": 0.08, "think_s": 0.04,
    "clients": 2, "late_chance": 0.0, "twice_chance": 0.0, "transfer_bytes_s": 0,
    "slice_bytes": 256 << 10, "is_early": False, "kills_several": False, "send_share": 0.8,
    "chaos_bytes_s": 0,
}  # fmt: skip
PAIR: Final[Changes] = {**QUICK, "copies": 2}
TRIO: Final[Changes] = {**QUICK, "copies": 3}


class Mutation(NamedTuple):
    """One dropped rule."""

    patches: Callable[[], list[Patch]]
    base: Changes
    faults: tuple[str, ...]
    changes: Changes = {}  # noqa: RUF012  # nothing changes it
    """Values of the plan that all runs share."""
    seeds: int = 200
    """Number of seeds within which the missing rule is detected."""

    def plan(self, random: Random) -> Plan:
        """Draw a plan in which the rule matters."""
        changes = {**self.base, "faults": self.faults, **self.changes}
        return msgspec.structs.replace(draw_usual(random), **changes)


@contextlib.contextmanager
def applied(mutation: Mutation | None) -> Iterator[None]:
    """Run the context's block without the rule."""
    patches = [] if mutation is None else mutation.patches()
    before = [(target, name, getattr(target, name)) for target, name, _ in patches]
    try:
        for target, name, value in patches:
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in before:
            setattr(target, name, value)


def drop(target: Any, name: str, value: Any) -> Callable[[], list[Patch]]:
    return lambda: [(target, name, value)]


def always(*_: object, **__: object) -> bool:
    return True


def never(*_: object, **__: object) -> bool:
    return False


def without(condition: Callable[..., bool]) -> Callable[[], list[Patch]]:
    rest = tuple(one for one in in_sync.JOIN_CONDITIONS if one is not condition)
    return drop(in_sync, "JOIN_CONDITIONS", rest)


def passes_over_suspects() -> list[Patch]:
    """Restore a record from proven stores although a suspect one may have more."""
    restore = missing_record.restore

    def passing_over(
        group: actions.Group, statuses: actions.Statuses, *rest: Any, **options: Any
    ) -> Any:
        new = states.Standing.NEW
        seen = tuple(
            msgspec.structs.replace(one, standing=new)
            if one.standing is states.Standing.SUSPECT
            else one
            for one in statuses
        )
        return restore(group, seen, *rest, **{**options, "accept_loss": True})

    return [(missing_record, "restore", passing_over)]


def any_winner() -> list[Patch]:
    """Let members outside the in-sync set be elected."""
    return [
        (election, "may_vote", lambda _, status: status.role.is_candidate),
        (member, "is_named", lambda one, record: record.holder == one.me),
    ]


def reopens_epochs() -> list[Patch]:
    """Let an epoch that is already in the log begin a second time."""
    begun = epochs.begun

    def begin(history: epochs.History, epoch: int, start: int) -> epochs.History:
        return history if epochs.last_epoch(history) == epoch else begun(history, epoch, start)

    return [(epochs, "begun", begin)]


def volatile_promise() -> list[Patch]:
    return [(states, "promised", lambda state, _: state), *reopens_epochs()]


def unburned_epoch() -> list[Patch]:
    def may_open(one: member.Member, record: records.Record) -> bool:
        return member.is_named(one, record) and record.epoch >= one.promised

    return [(member, "may_open", may_open), *reopens_epochs()]


def cut_to_the_shorter_end() -> list[Patch]:
    def common_point(
        mine: epochs.History, my_end: int, _: epochs.History, masters_end: int
    ) -> epochs.CommonPoint:
        return epochs.CommonPoint(min(my_end, masters_end), mine)

    return [
        (handshake, "common_point", common_point),
        (replica, "check_digest", always),
        (master_stream, "reached", lambda _, masters, end: epochs.truncated(masters, end)),
        (replica, "reached", lambda _, masters, end: epochs.truncated(masters, end)),
    ]


def keeps_entries() -> list[Patch]:
    begun, truncated = epochs.begun, epochs.truncated

    def begin(history: epochs.History, epoch: int, start: int) -> epochs.History:
        return begun(truncated(history, start), epoch, start)

    return [
        (epochs, "truncated", lambda history, _: history),
        (epochs, "begun", begin),
        (handshake, "_fault", lambda _: ""),
        (replica, "check_digest", always),
    ]


def same_incarnation() -> list[Patch]:
    return [(states, "is_unclean", lambda *_: False)]


def appends_at_a_failed_write() -> list[Patch]:
    def append(replica: Any, offset: int, data: Any) -> None:
        replica._publisher.drop()
        try:
            replica._write(offset, data)
        finally:
            replica._publisher.dispatch()

    return [(Replica, "append", append)]


def forgets_position() -> list[Patch]:
    def forgetful(*arguments: Any) -> JournalContent:
        found = collect(*arguments)
        found.position = None
        return found

    return [(journal_files, "collect", forgetful)]


SLOW: Final[Changes] = {"slice_bytes": 300, "transfer_bytes_s": 10_000}
LATE_ORDERS: Final = ("exile", "elect", "repeat_order")
ORDERS_OFTEN: Final[Changes] = {"weights": {"repeat_order": 6, "exile": 4}}
BREAKS: Final = ("isolate", "cut", "kill", "elect")
LOSSES: Final = ("lose_answers", "isolate", "cut", "elect")

ALL: dict[str, Mutation] = {
    "R1: only another version settles a write": Mutation(
        drop(in_sync, "settles", always),
        PAIR,
        ("part", "elect"),
        {"unknown_chance": 0.85, "lands_chance": 0.05, "weights": {"part": 4}, "pause_s": 0.15},
        seeds=1000,
    ),
    "the confirm offset waits for pending additions": Mutation(
        drop(in_sync, "maximal_set", lambda leading: leading.base.record.in_sync),
        PAIR,
        ("part", "elect"),
        {"unknown_chance": 0.6},
        seeds=400,
    ),
    "the confirm offset waits for pending removals": Mutation(
        drop(in_sync, "maximal_set", lambda leading: leading.possible[-1]), PAIR, LOSSES, seeds=60
    ),
    "the winner is a member of the set": Mutation(any_winner, PAIR, BREAKS, seeds=80),
    "a copy that joins has the confirmed log": Mutation(
        without(in_sync.has_confirmed_log), PAIR, BREAKS, SLOW, seeds=1000
    ),
    "masters of stale epochs are refused": Mutation(
        drop(member, "accepts", always), TRIO, LATE_ORDERS, ORDERS_OFTEN, seeds=1500
    ),
    "promises are durable": Mutation(
        volatile_promise,
        PAIR,
        ("kill", "elect", "freeze", "lose_answers"),
        {"late_chance": 0.1, "twice_chance": 0.3},
        seeds=100,
    ),
    "R2: a store that lost its log is another copy": Mutation(
        same_incarnation, PAIR, ("crash", "elect", "kill", "cut"), seeds=60
    ),
    "R2: only the recorded incarnation is promoted": Mutation(
        drop(member, "is_named", lambda one, record: record.holder.ordinal == one.me.ordinal),
        PAIR,
        ("crash", "elect", "freeze"),
        seeds=60,
    ),
    "R3: followers promise": Mutation(
        drop(member, "promise_of_follower", lambda one, _: one.promised),
        TRIO,
        LATE_ORDERS,
        ORDERS_OFTEN,
        seeds=1500,
    ),
    "R4: an epoch that was promised before is burned": Mutation(
        unburned_epoch, PAIR, ("kill", "lose_answers", "elect", "cut"), seeds=60
    ),
    "R5: entries above the end of the log go": Mutation(
        keeps_entries, TRIO, ("crash", "elect", "kill", "isolate"), seeds=150
    ),
    "logs are cut to their newest common point": Mutation(
        cut_to_the_shorter_end, TRIO, BREAKS, seeds=60
    ),
    "R6: reads wait for the start of the epoch": Mutation(
        drop(in_sync, "may_read", always), PAIR, BREAKS, seeds=60
    ),
    "R8: pending removals do not count": Mutation(
        drop(in_sync, "certain_set", lambda leading: leading.base.record.in_sync),
        PAIR,
        ("freeze", "part"),
        {"min_in_sync": 2, "unknown_chance": 0.6, "pause_s": 0.15},
        seeds=600,
    ),
    "R10: all are fenced before offsets are compared": Mutation(
        drop(missing_record, "is_fenced", always),
        PAIR,
        ("delete", "isolate", "freeze", "elect"),
        {"weights": {"delete": 4}},
        seeds=1500,
    ),
    "R10: a damaged store may have been the last copy": Mutation(
        passes_over_suspects,
        PAIR,
        ("delete", "crash", "elect"),
        {"weights": {"delete": 2}},
        seeds=100,
    ),
    "R10: no copy that was in sync is left out": Mutation(
        drop(missing_record, "left_out", lambda _members: ()),
        PAIR,
        ("empty_store", "delete", "part"),
        {"weights": {"empty_store": 3, "delete": 2, "part": 3}},
        seeds=60,
    ),
    "R10: a late write cannot change another record": Mutation(
        drop(
            records,
            "may_replace",
            lambda current, base, _: current is None or current.version == base.version,
        ),
        PAIR,
        ("delete", "part", "elect"),
        {"weights": {"delete": 4, "part": 4}, "unknown_chance": 0.4},
        seeds=1000,
    ),
    "a forwarded request is not forwarded again": Mutation(
        drop(diversion, "is_forwarded", never),
        TRIO,
        ("exile", "slow_record", "switch_over", "repeat_order"),
        {"electors": 2, "clients": 3, "pause_s": 0.04},
        seeds=500,
    ),
    "a failed write is undone before replicated bytes are appended": Mutation(
        appends_at_a_failed_write, TRIO, ("full_disk", "elect"), {"think_s": 0.02}, seeds=100
    ),
    "R10: a restarted copy knows how recent its tables are": Mutation(
        forgets_position,
        PAIR,
        ("kill", "part", "delete"),
        {"weights": {"kill": 6, "part": 4, "delete": 4}, "send_share": 0.05, "think_s": 0.02},
        seeds=250,
    ),
}
