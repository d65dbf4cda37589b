# SPDX-License-Identifier: Apache-2.0
"""Every step that a small group can take, performed by the modules that brokers and electors use.

The model adds their surroundings: disks, a network that delays and repeats, clients, crashes. There
is no clock: a step may happen whenever it is possible, so every timeout takes its worst possible
length. Methods are hooks: if a subclass drops one rule, the check must fail.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from cometmq.ha import election, epochs, in_sync
from cometmq.ha import member as members
from cometmq.ha import record as records
from cometmq.ha import state as states
from cometmq.ha.election import Status
from cometmq.ha.in_sync import Ack, AckRefused
from cometmq.ha.member import Member, OrderRefused, Role
from cometmq.ha.port import CONFLICT, UNKNOWN, Answer, Outcome, applied
from cometmq.ha.record import Copy, Policy, Record, TablesAt, Versioned
from cometmq.ha.state import Boot, Standing, State
from cometmq.ha.testing import invariants
from cometmq.ha.testing.world import Bounds, Node, Stream, World, Write

Step = tuple[str, World]
PROVEN: Final = Standing.PROVEN
NO_TABLES: Final = {"tables": (), "tables_epoch": 0, "tables_start": 0}


class Model:
    """All steps of a group within given bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.group = election.Group(
            name="g",
            ordinals=tuple(range(bounds.nodes)),
            policy=bounds.policy,
            min_in_sync=bounds.min_in_sync,
        )

    def first(self) -> World:
        """Return a newly started group after the steps of the script."""
        world = self._started()
        for label in self.bounds.script:
            steps = dict(self.steps(world))
            if label not in steps:
                raise ValueError(f"step {label!r} is not possible, only {list(steps)}")
            world = steps[label]
        return world

    def _started(self) -> World:
        bounds = self.bounds
        nodes = tuple(self._new_node(ordinal) for ordinal in range(bounds.nodes))
        in_sync_set = tuple(node.state.copy for node in nodes[: bounds.in_sync])
        record = Record(
            uid="u1",
            group="g",
            epoch=1,
            holder=in_sync_set[bounds.holder],
            in_sync=in_sync_set,
            policy=bounds.policy,
            copies=bounds.nodes,
        )
        world = World(nodes=nodes, cell=Versioned(record, "1"), left=bounds)
        others = [ordinal for ordinal in range(bounds.nodes) if ordinal != bounds.holder]
        for ordinal in (bounds.holder, *others):
            world = self.read(world, ordinal)
        return world

    def steps(self, world: World) -> Iterator[Step]:
        """Yield each possible next world with the name of its step."""
        for ordinal, node in enumerate(world.nodes):
            if node.leading is not None:
                yield from self._master_steps(world, ordinal)
            else:
                yield from self._slave_steps(world, ordinal)
            yield from self._any_steps(world, ordinal)
        yield from self._record_steps(world)
        yield from self._elector_steps(world)

    # ---- a master ----------------------------------------------------------------------------

    def _master_steps(self, world: World, ordinal: int) -> Iterator[Step]:
        node, left = world.nodes[ordinal], world.left
        leading = node.leading
        assert leading is not None
        if left.messages and in_sync.may_acknowledge(leading, left.min_in_sync):
            yield f"{ordinal} appends", self.append(world, ordinal)
        if left.tables:
            yield f"{ordinal} changes a table", self.change_tables(world, ordinal)
        for ack in world.acks:
            try:
                after = in_sync.acked(leading, ack)
            except AckRefused:
                continue
            if after != leading:
                label = f"{ordinal} hears {ack.copy.incarnation} at {ack.offset}/{ack.tables}"
                yield label, self.lead(world, ordinal, after)
        if left.writes:
            yield from self._set_changes(world, ordinal)
        if left.lapses:
            spent = replace(world, left=replace(left, lapses=left.lapses - 1))
            yield f"{ordinal} fences itself", self.react(spent, ordinal, members.LeaseLapsed())
        if left.hand_overs:
            yield from self._hand_overs(world, ordinal)

    def _set_changes(self, world: World, ordinal: int) -> Iterator[Step]:
        leading = world.nodes[ordinal].leading
        assert leading is not None
        others = [copy for copy in in_sync.maximal_set(leading) if copy != leading.me]
        seen: set[Record] = set()
        for unfit in ((), *((copy,) for copy in others)):
            record = in_sync.proposal(leading, unfit)
            if record is None or record in seen or not in_sync.wants_write(leading, unfit):
                continue
            seen.add(record)
            names = ",".join(str(copy.ordinal) for copy in record.in_sync)
            asked = self.lead(world, ordinal, in_sync.written(leading, record))
            for how, after, outcome in self.write(asked, leading.base, record):
                asking = after.nodes[ordinal].leading
                assert asking is not None
                label = f"{ordinal} writes the set {names}{how}"
                yield label, self.lead(after, ordinal, in_sync.answered(asking, outcome))

    def _hand_overs(self, world: World, ordinal: int) -> Iterator[Step]:
        """Park, write, and unpark or follow in one step; steps in between would add nothing."""
        node = world.nodes[ordinal]
        leading = node.leading
        assert leading is not None
        for target in in_sync.certain_set(leading):
            record = in_sync.hand_over(leading, target) if target != leading.me else None
            if record is None or record.epoch > world.left.epochs:
                continue
            spent = replace(world, left=replace(world.left, hand_overs=world.left.hand_overs - 1))
            spent = self.react(spent, ordinal, members.ParkOrder(target.ordinal))
            spent = self.lead(spent, ordinal, in_sync.written(leading, record))
            for how, after, outcome in self.write(spent, leading.base, record, is_counted=False):
                parked = after.nodes[ordinal].leading
                assert parked is not None
                event = members.HandedOver(outcome.answer, target.ordinal, record.epoch)
                told = self.react(after, ordinal, event)
                if outcome.answer is not Answer.APPLIED:
                    told = self.lead(told, ordinal, in_sync.answered(parked, outcome))
                yield f"{ordinal} hands over to {target.ordinal}{how}", told

    def append(self, world: World, ordinal: int) -> World:
        """Append the next client message and send it to the followers."""
        node, left = world.nodes[ordinal], world.left
        assert node.leading is not None
        message = self.bounds.messages - left.messages + 1
        log = (*node.log, message)
        world = replace(world, left=replace(left, messages=left.messages - 1))
        world = self._with_node(world, ordinal, log=log)
        world = self._with_stream(world, node.leading.epoch, log=log)
        return self.lead(world, ordinal, in_sync.appended(node.leading, len(log)))

    def change_tables(self, world: World, ordinal: int) -> World:
        """Change a table and send the change to the followers."""
        node, left = world.nodes[ordinal], world.left
        assert node.leading is not None
        stream = world.stream(node.leading.epoch)
        assert stream is not None
        tables = (*node.tables, self.bounds.tables - left.tables + 1)
        world = replace(world, left=replace(left, tables=left.tables - 1))
        world = self._with_node(world, ordinal, tables=tables)
        world = self._with_stream(world, stream.epoch, tables=tables)
        changes = len(tables) - stream.tables_start
        return self.lead(world, ordinal, in_sync.tables_changed(node.leading, changes))

    def lead(self, world: World, ordinal: int, leading: in_sync.Leadership) -> World:
        """Replace a master's view; whatever the new view confirms is answered at once."""
        return invariants.noted(self._with_node(world, ordinal, leading=leading), ordinal)

    # ---- a slave -----------------------------------------------------------------------------

    def _slave_steps(self, world: World, ordinal: int) -> Iterator[Step]:
        node = world.nodes[ordinal]
        follower = node.member
        stream = world.stream(follower.epoch)
        if follower.role is Role.SLAVE and stream is not None:
            if not node.is_connected:
                if members.accepts(follower, stream.epoch):
                    yield f"{ordinal} connects", self.connect(world, ordinal, stream)
            else:
                if len(node.log) < len(stream.log):
                    yield f"{ordinal} copies", self.copy(world, ordinal, stream)
                has_tables = node.tables_epoch == stream.epoch and node.tables == stream.tables
                if self.bounds.tables and not has_tables:
                    after = self._with_node(
                        world,
                        ordinal,
                        tables=stream.tables,
                        tables_epoch=stream.epoch,
                        tables_start=stream.tables_start,
                    )
                    yield f"{ordinal} copies tables", self._acknowledge(after, ordinal, stream)
        for other in world.streams:  # orders to follow a former master may arrive at any time
            if other.epoch != follower.epoch and other.owner != ordinal:
                order = members.FollowOrder(other.epoch, other.owner)
                yield from self._orders(world, ordinal, order, f"follows {other.epoch}")

    def connect(self, world: World, ordinal: int, stream: Stream) -> World:
        """Shake hands: truncate to the common point and acknowledge the rest of the log."""
        node = world.nodes[ordinal]
        log, history = self.truncate(node, stream)
        history = self.reach(history, stream, len(log))
        world = self._with_node(world, ordinal, log=log, history=history, is_connected=True)
        if not self.bounds.tables:  # there is nothing to copy
            world = self._with_node(world, ordinal, tables_epoch=stream.epoch)
        return self._acknowledge(world, ordinal, stream)

    def truncate(self, node: Node, stream: Stream) -> tuple[tuple[int, ...], epochs.History]:
        """Return a follower's log and history after the handshake."""
        point = epochs.common_point(node.history, len(node.log), stream.history, len(stream.log))
        return node.log[: point.offset], point.history

    def reach(self, history: epochs.History, stream: Stream, end: int) -> epochs.History:
        """Return the history of a follower that has copied up to `end`."""
        return epochs.reached(history, stream.history, end)

    def copy(self, world: World, ordinal: int, stream: Stream) -> World:
        """Append the master's next message and acknowledge it."""
        node = world.nodes[ordinal]
        log = (*node.log, stream.log[len(node.log)])
        history = self.reach(node.history, stream, len(log))
        world = self._with_node(world, ordinal, log=log, history=history)
        return self._acknowledge(world, ordinal, stream)

    def _acknowledge(self, world: World, ordinal: int, stream: Stream) -> World:
        node = world.nodes[ordinal]
        tables = -1
        if node.tables_epoch == stream.epoch:
            tables = len(node.tables) - node.tables_start
        ack = Ack(node.member.me, stream.epoch, len(node.log), tables)
        return replace(world, acks=world.acks | {ack})

    # ---- any member --------------------------------------------------------------------------

    def _any_steps(self, world: World, ordinal: int) -> Iterator[Step]:
        node, left = world.nodes[ordinal], world.left
        after = self.read(world, ordinal)
        if after != world:
            yield f"{ordinal} reads the record", after
            yield from self._crash_after_promise(world, after, ordinal)
        if left.crashes:
            spent = replace(world, left=replace(left, crashes=left.crashes - 1))
            yield f"{ordinal} is killed", self._restarted(spent, ordinal, node)
        if left.host_crashes:
            spent = replace(world, left=replace(left, host_crashes=left.host_crashes - 1))
            for end in {0, max(0, len(node.log) - 1), len(node.log)}:
                yield f"host of {ordinal} crashes at {end}", self.host_crash(spent, ordinal, end)

    def read(self, world: World, ordinal: int) -> World:
        """Perform a member's read of the record."""
        node, found = world.nodes[ordinal], world.cell
        if node.leading is not None:
            leading = node.leading
            if found is not None and in_sync.is_deposed(leading, found):
                return self.react(world, ordinal, members.RecordRead(found))
            if leading.must_read or (found is not None and found.version != leading.base.version):
                return self.lead(world, ordinal, in_sync.found(leading, found))
            return world
        if found is None:
            return world
        if node.state.copy in found.record.in_sync and node.state.standing is not PROVEN:
            world = self._with_node(world, ordinal, state=states.proven(node.state))
        is_named = found.record.holder == node.member.me
        if not is_named and world.stream(found.record.epoch) is None:
            return world
        return self.react(world, ordinal, members.RecordRead(found))

    def _orders(
        self, world: World, ordinal: int, order: members.Order, name: str
    ) -> Iterator[Step]:
        try:
            after = self.react(world, ordinal, order)
        except OrderRefused:
            return
        if after != world:
            yield f"{ordinal} {name}", after
            yield from self._crash_after_promise(world, after, ordinal)

    def react(self, world: World, ordinal: int, event: members.Event) -> World:
        """Pass an event to a member and perform its actions."""
        after, actions = members.react(world.nodes[ordinal].member, event)
        world = self._with_node(world, ordinal, member=after)
        for action in actions:
            world = self.perform(world, ordinal, action)
        return world

    def perform(self, world: World, ordinal: int, action: members.Action) -> World:
        """Perform one action of a member; reads are steps of their own."""
        match action:
            case members.SavePromise(epoch=epoch):
                return self.save_promise(world, ordinal, epoch)
            case members.StopFollowing():
                return self._with_node(world, ordinal, is_connected=False)
            case members.CloseToClients() | members.ForwardParked():
                return self._with_node(world, ordinal, leading=None)
            case members.BeginEpoch(epoch=epoch, tables=at):
                return self._begun(world, ordinal, epoch, at)
            case members.Lead(found=found):
                return self.open(world, ordinal, found)
            case members.Claim(base=base, record=record) if record.epoch <= world.left.epochs:
                return self.swap(world, base, record)[0]
            case _:
                return world

    def _begun(self, world: World, ordinal: int, epoch: int, at: TablesAt | None) -> World:
        """Fetch tables if need be, and begin the epoch; without them nothing happens."""
        node = world.nodes[ordinal]
        tables = node.tables
        if at and (at.epoch, at.changes) > self._tables_position(node):
            source = world.nodes[at.copy.ordinal]
            if source.state.copy != at.copy:
                return world
            tables = source.tables
        world = self._with_node(
            world,
            ordinal,
            history=self.begin(node.history, epoch, len(node.log)),
            tables=tables,
            tables_epoch=epoch,
            tables_start=len(tables),
        )
        return self.react(world, ordinal, members.Opened(epoch))

    def _tables_position(self, node: Node) -> tuple[int, int]:
        return node.tables_epoch, len(node.tables) - node.tables_start

    def begin(self, history: epochs.History, epoch: int, end: int) -> epochs.History:
        """Return the history of a log after an epoch begins at its end."""
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
        """Return a new master's initial view; in the worst case it knows no confirm offset."""
        return in_sync.lead(
            world.nodes[ordinal].member.me, found, start=len(world.nodes[ordinal].log)
        )

    # ---- crashes -----------------------------------------------------------------------------

    def _crash_after_promise(self, before: World, after: World, ordinal: int) -> Iterator[Step]:
        """Yield the crash between saving a promise and the actions that depend on it."""
        promised = after.nodes[ordinal].state.promised
        if before.left.crashes and promised > before.nodes[ordinal].state.promised:
            left = replace(before.left, crashes=before.left.crashes - 1)
            world = self.save_promise(replace(before, left=left), ordinal, promised)
            node = world.nodes[ordinal]
            yield f"{ordinal} is killed after promising", self._restarted(world, ordinal, node)

    def host_crash(self, world: World, ordinal: int, end: int) -> World:
        """Truncate the log to what had reached the disk, and restart."""
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
        """Return the history of a log that ends at `end` after recovery."""
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

    # ---- the record --------------------------------------------------------------------------

    def write(
        self, world: World, base: Versioned | None, record: Record, *, is_counted: bool = True
    ) -> Iterator[tuple[str, World, Outcome]]:
        """Yield the possible fates of a write: answered at once, lost, or applied late."""
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
        """Compare and swap, or create the record if the write has no base."""
        if base is None:
            is_applied = world.cell is None
        else:
            is_applied = records.may_replace(world.cell, base, record)
        if not is_applied:
            return world, CONFLICT
        outcome = applied(record, str(world.writes + 1))
        late = world.late
        if not self.bounds.deletions:  # the others were based on an older version
            late = frozenset()
        world = replace(world, cell=outcome.written, writes=world.writes + 1, late=late)
        return world, outcome

    def _record_steps(self, world: World) -> Iterator[Step]:
        for write in world.late:
            dropped = replace(world, late=world.late - {write})
            after, outcome = self.swap(dropped, write.base, write.record)
            if outcome.answer is Answer.APPLIED:
                names = ",".join(copy.incarnation for copy in write.record.in_sync)
                what = f"epoch {write.record.epoch} of {write.record.holder.ordinal} with {names}"
                yield f"a write of {what} lands late", after
        if world.left.deletions and world.cell is not None:
            left = replace(world.left, deletions=world.left.deletions - 1)
            # versions restart, as they do for a new file
            yield "the record is deleted", replace(world, cell=None, writes=0, left=left)

    # ---- electors ----------------------------------------------------------------------------

    def _elector_steps(self, world: World) -> Iterator[Step]:
        if world.cell is not None and world.cell.record.epoch >= world.left.epochs:
            return
        statuses = tuple(self.status(node) for node in world.nodes)
        if world.cell is None:
            actions = self._restore(world, statuses)
        else:
            actions = dict.fromkeys(
                action
                for answers in self._views(statuses)
                for action in election.elect(world.cell, answers)
            )
        for action in actions:
            yield from self._elector_action(world, action)

    def _views(self, statuses: election.Statuses) -> Iterable[election.Statuses]:
        """Return the possible sets of members that answer an elector."""
        if self.bounds.policy is Policy.ALL_IN_SYNC:
            return [(status,) for status in statuses]
        pairs = [
            (one, other)
            for one in statuses
            for other in statuses
            if one.copy.ordinal < other.copy.ordinal
        ]
        return [*pairs, statuses]

    def _restore(self, world: World, statuses: election.Statuses) -> Iterable[election.Action]:
        fence = world.fence_epoch or election.restore_epoch(statuses)
        return self.restore(statuses, fence)

    def restore(self, statuses: election.Statuses, fence_epoch: int) -> election.Actions:
        """Return what an elector does without a record."""
        return election.restore(self.group, statuses, fence_epoch, "u2")

    def _elector_action(self, world: World, action: election.Action) -> Iterator[Step]:
        limit = world.left.epochs
        match action:
            case election.Elect(base=base, record=record) if record.epoch <= limit:
                label = f"elector makes {record.holder.ordinal} master of {record.epoch}"
                for how, after, _ in self.write(world, base, record, is_counted=False):
                    yield label + how, after
            case election.Create(record=record) if record.epoch <= limit:
                label = f"elector creates the record for {record.holder.ordinal}"
                for how, after, _ in self.write(world, None, record, is_counted=False):
                    yield label + how, after
            case election.Fence(ordinal=ordinal, epoch=epoch) if epoch <= limit:
                if world.cell is None:
                    world = replace(world, fence_epoch=epoch)
                order = members.FenceOrder(epoch)
                yield from self._orders(world, ordinal, order, f"is fenced with {epoch}")

    def status(self, node: Node) -> Status:
        """Return the answer of a member to an elector."""
        tables_epoch, changes = self._tables_position(node)
        return Status(
            copy=node.member.me,
            role=node.member.role,
            promised=node.state.promised,
            epoch=node.member.epoch,
            last_log_epoch=epochs.last_epoch(node.history),
            max_offset=len(node.log),
            tables_epoch=tables_epoch,
            tables=changes,
            standing=node.state.standing,
        )

    # ---- helpers -----------------------------------------------------------------------------

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
