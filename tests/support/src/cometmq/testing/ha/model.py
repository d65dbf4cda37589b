# SPDX-License-Identifier: Apache-2.0
"""Every step that a small group can take, performed by the modules that brokers and electors use.

There is no clock. A step can happen whenever it is possible, so every timeout may be arbitrarily
long or short.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from cometmq.ha import actions, election, in_sync, missing_record
from cometmq.ha import member as members
from cometmq.ha import state as states
from cometmq.ha.in_sync import Ack, AckRefused
from cometmq.ha.member import OrderRefused
from cometmq.ha.orders import Fence, Follow, HandOver, Order
from cometmq.ha.port import Answer
from cometmq.ha.record import Record, Versioned
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.testing.ha.machinery import Machinery
from cometmq.testing.ha.world import Stream, World

Step = tuple[str, World]
PROVEN: Final = Standing.PROVEN


class Model(Machinery):
    """The steps that a group can take within bounds."""

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
        """Hold, write, and serve or follow in one step. Only one state in between adds anything:
        the member may read the new record before it has the answer to its write.
        """
        node = world.nodes[ordinal]
        leading = node.leading
        assert leading is not None
        for target in in_sync.certain_set(leading):
            record = in_sync.hand_over(leading, target) if target != leading.me else None
            if record is None or record.epoch > world.left.epochs:
                continue
            spent = replace(world, left=replace(world.left, hand_overs=world.left.hand_overs - 1))
            spent = self.react(spent, ordinal, HandOver(target.ordinal))
            spent = self.lead(spent, ordinal, in_sync.written(leading, record))
            for how, after, outcome in self.write(spent, leading.base, record, is_counted=False):
                asking = after.nodes[ordinal].leading
                assert asking is not None
                event = members.HandedOver(outcome.answer, target.ordinal, record.epoch)
                told = self.react(after, ordinal, event)
                if outcome.answer is not Answer.APPLIED:
                    told = self.lead(told, ordinal, in_sync.answered(asking, outcome))
                yield f"{ordinal} hands over to {target.ordinal}{how}", told
                if after.cell is not None and after.cell.record == record:
                    seen = self.react(after, ordinal, members.RecordRead(after.cell))
                    seen = self.react(seen, ordinal, event)
                    yield f"{ordinal} hands over to {target.ordinal}{how}, after reading", seen

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
                order = Follow(other.epoch, other.owner)
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

    def _orders(self, world: World, ordinal: int, order: Order, name: str) -> Iterator[Step]:
        try:
            after = self.react(world, ordinal, order)
        except OrderRefused:
            return
        if after != world:
            yield f"{ordinal} {name}", after
            yield from self._crash_after_promise(world, after, ordinal)

    def _crash_after_promise(self, before: World, after: World, ordinal: int) -> Iterator[Step]:
        """Yield a crash between saving a promise and the actions that depend on it."""
        promised = after.nodes[ordinal].state.promised
        if before.left.crashes and promised > before.nodes[ordinal].state.promised:
            left = replace(before.left, crashes=before.left.crashes - 1)
            world = self.save_promise(replace(before, left=left), ordinal, promised)
            node = world.nodes[ordinal]
            yield f"{ordinal} is killed after promising", self._restarted(world, ordinal, node)

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
            # versions start again, as for a new file
            yield "the record is deleted", replace(world, cell=None, writes=0, left=left)

    def _elector_steps(self, world: World) -> Iterator[Step]:
        if world.cell is not None and world.cell.record.epoch >= world.left.epochs:
            return
        statuses = tuple(self.status(node) for node in world.nodes)
        if world.cell is None:
            actions = self._restore(world, statuses)
        else:
            actions = dict.fromkeys(
                action
                for status in statuses  # an elector may reach a single member
                for action in election.elect(world.cell, (status,))
            )
        for action in actions:
            yield from self._elector_action(world, action)

    def _restore(self, world: World, statuses: actions.Statuses) -> Iterable[actions.Action]:
        fence = world.fence_epoch or missing_record.restore_epoch(statuses)
        return self.restore(statuses, fence)

    def restore(self, statuses: actions.Statuses, fence_epoch: int) -> actions.Actions:
        """Return an elector's actions without a record."""
        return missing_record.restore(self.group, statuses, fence_epoch, "u2")

    def _elector_action(self, world: World, action: actions.Action) -> Iterator[Step]:
        limit = world.left.epochs
        match action:
            case actions.Elect(base=base, record=record) if record.epoch <= limit:
                label = f"elector makes {record.holder.ordinal} master of {record.epoch}"
                for how, after, _ in self.write(world, base, record, is_counted=False):
                    yield label + how, after
            case actions.Create(record=record) if record.epoch <= limit:
                label = f"elector creates the record for {record.holder.ordinal}"
                for how, after, _ in self.write(world, None, record, is_counted=False):
                    yield label + how, after
            case actions.Tell(ordinal=ordinal, order=Fence(epoch=epoch) as order) if epoch <= limit:
                if world.cell is None:
                    world = replace(world, fence_epoch=epoch)
                yield from self._orders(world, ordinal, order, f"is fenced with {epoch}")
