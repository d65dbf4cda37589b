# SPDX-License-Identifier: Apache-2.0
"""The environment of the rules in the exhaustive check: disks, crashes, a record, and actions.

The methods are hooks: a subclass of the model drops one rule, and the check must then fail.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from cometmq.ha import actions, epochs, in_sync
from cometmq.ha import member as members
from cometmq.ha import record as records
from cometmq.ha import state as states
from cometmq.ha.actions import Status
from cometmq.ha.member import Member
from cometmq.ha.port import CONFLICT, UNKNOWN, Outcome, applied
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.ha.state import Boot, State
from cometmq.testing.ha import invariants
from cometmq.testing.ha.world import Bounds, Node, Stream, World, Write

NO_TABLES: Final = {"tables": (), "tables_epoch": 0, "tables_start": 0}


class Machinery:
    """Performs the actions of members and writes the record, within bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.group = actions.Group(
            name="g",
            ordinals=tuple(range(bounds.nodes)),
            min_in_sync=bounds.min_in_sync,
        )

    def lead(self, world: World, ordinal: int, leading: in_sync.Leadership) -> World:
        """Replace a master's view, and answer everything that the new view confirms."""
        return invariants.noted(self._with_node(world, ordinal, leading=leading), ordinal)

    def truncate(self, node: Node, stream: Stream) -> tuple[tuple[int, ...], epochs.History]:
        """Return a follower's log and history after the handshake."""
        point = epochs.common_point(node.history, len(node.log), stream.history, len(stream.log))
        return node.log[: point.offset], point.history

    def reach(self, history: epochs.History, stream: Stream, end: int) -> epochs.History:
        """Return the history of a follower that has copied the log up to `end`."""
        return epochs.reached(history, stream.history, end)

    def react(self, world: World, ordinal: int, event: members.Event) -> World:
        """Pass an event to a member and perform its actions."""
        after, actions = members.react(world.nodes[ordinal].member, event)
        world = self._with_node(world, ordinal, member=after)
        for action in actions:
            world = self.perform(world, ordinal, action)
        return world

    def perform(self, world: World, ordinal: int, action: members.Action) -> World:
        """Perform one of a member's actions; reads are separate steps."""
        match action:
            case members.SavePromise(epoch=epoch):
                return self.save_promise(world, ordinal, epoch)
            case members.StopFollowing():
                return self._with_node(world, ordinal, is_connected=False)
            case members.CloseToClients() | members.ForwardHeld():
                return self._with_node(world, ordinal, leading=None)
            case members.BeginEpoch(epoch=epoch):
                return self._begun(world, ordinal, epoch)
            case members.Lead(found=found):
                return self.open(world, ordinal, found)
            case members.Claim(base=base, record=record) if record.epoch <= world.left.epochs:
                return self.swap(world, base, record)[0]
            case members.Claim() | members.ReadRecord() | members.StartFollowing():
                return world  # out of the model's epochs, or a step of its own
            case members.Serving():
                return world

    def _begun(self, world: World, ordinal: int, epoch: int) -> World:
        node = world.nodes[ordinal]
        world = self._with_node(
            world,
            ordinal,
            history=self.begin(node.history, epoch, len(node.log)),
            tables_epoch=epoch,
            tables_start=len(node.tables),
        )
        return self.react(world, ordinal, members.Opened(epoch))

    def begin(self, history: epochs.History, epoch: int, end: int) -> epochs.History:
        """Return the history of a log after an epoch has begun in it."""
        return epochs.begun(history, epoch, end)

    def save_promise(self, world: World, ordinal: int, epoch: int) -> World:
        """Make a promise durable."""
        state = states.promised(world.nodes[ordinal].state, epoch)
        return self._with_node(world, ordinal, state=state)

    def open(self, world: World, ordinal: int, found: Versioned) -> World:
        """Make a member the master."""
        node = world.nodes[ordinal]
        leading = self.first_view(world, ordinal, found)
        stream = Stream(
            epoch=found.record.epoch,
            owner=ordinal,
            log=node.log,
            history=node.history,
            tables=node.tables,
            tables_start=len(node.tables),
        )
        others = [one for one in world.streams if one.epoch != stream.epoch]
        streams = tuple(sorted([*others, stream], key=lambda one: one.epoch))
        invariants.check_opening(world, ordinal)
        return self.lead(replace(world, streams=streams), ordinal, leading)

    def first_view(self, world: World, ordinal: int, found: Versioned) -> in_sync.Leadership:
        """Return the view of a master that opens in the worst case: without a confirm offset."""
        return in_sync.lead(
            world.nodes[ordinal].member.me, found, start=len(world.nodes[ordinal].log)
        )

    def host_crash(self, world: World, ordinal: int, end: int) -> World:
        """Truncate the log to the part that had reached the disk, and restart."""
        node = world.nodes[ordinal]
        cut = replace(
            node,
            log=node.log[:end],
            history=self.recovered_history(node.history, end),
            **({} if end == len(node.log) else NO_TABLES),
            state=self.restarted_state(node.state),
        )
        return self._restarted(world, ordinal, cut)

    def recovered_history(self, history: epochs.History, end: int) -> epochs.History:
        """Return the history after recovering a log that ends at `end`."""
        return epochs.truncated(history, end)

    def restarted_state(self, state: State) -> State:
        """Return the state after an unclean boot."""
        boot = Boot(boot_id=f"{state.boot_id}'", was_closed=False)
        copy = state.copy
        after = states.started(state, boot, lambda: f"{copy.incarnation}'")
        return replace(after, boot_id=state.boot_id)

    def _restarted(self, world: World, ordinal: int, node: Node) -> World:
        fresh = Member(me=node.state.copy, promised=node.state.promised)
        node = replace(node, member=fresh, leading=None, is_connected=False)
        world = self._with_node(world, ordinal, node)
        return self.react(world, ordinal, members.Recovered())

    def write(
        self, world: World, base: Versioned | None, record: Record, *, is_counted: bool = True
    ) -> Iterator[tuple[str, World, Outcome]]:
        """Yield the possible outcomes of a write: answered, or unanswered and perhaps late."""
        left = world.left
        if is_counted:
            if not left.writes:
                return
            left = replace(left, writes=left.writes - 1)
            world = replace(world, left=left)
        yield "", *self.swap(world, base, record)
        if left.lost:
            late = world.late | {Write(base, record)}
            yield (
                " (lost)",
                replace(world, late=late, left=replace(left, lost=left.lost - 1)),
                UNKNOWN,
            )

    def swap(self, world: World, base: Versioned | None, record: Record) -> tuple[World, Outcome]:
        """Replace the record if it matches `base`, or create it if `base` is None."""
        if base is None:
            is_applied = world.cell is None
        else:
            is_applied = records.may_replace(world.cell, base, record)
        if not is_applied:
            return world, CONFLICT
        outcome = applied(record, str(world.writes + 1))
        late = world.late
        if not self.bounds.deletions:  # all other writes were based on a removed version
            late = frozenset()
        world = replace(world, cell=outcome.written, writes=world.writes + 1, late=late)
        return world, outcome

    def status(self, node: Node) -> Status:
        """Return a member's answer to an elector."""
        return Status(
            copy=node.member.me,
            role=node.member.role,
            promised=node.state.promised,
            epoch=node.member.epoch,
            last_log_epoch=epochs.last_epoch(node.history),
            max_offset=len(node.log),
            tables_epoch=node.tables_epoch,
            tables=len(node.tables) - node.tables_start,
            standing=node.state.standing,
        )

    def _new_node(self, ordinal: int) -> Node:
        name = "mxyz"[ordinal]
        state = states.created("g", ordinal, "b", lambda: name)
        fresh = Member(me=Copy(ordinal, name), promised=0)
        return Node(state=state, member=members.react(fresh, members.Recovered())[0])

    def _with_node(
        self, world: World, ordinal: int, node: Node | None = None, **changes: object
    ) -> World:
        node = replace(node or world.nodes[ordinal], **changes)
        nodes = world.nodes
        return replace(world, nodes=(*nodes[:ordinal], node, *nodes[ordinal + 1 :]))

    def _with_stream(self, world: World, epoch: int, **changes: object) -> World:
        streams = tuple(
            replace(one, **changes) if one.epoch == epoch else one for one in world.streams
        )
        return replace(world, streams=streams)
