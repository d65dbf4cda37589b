# SPDX-License-Identifier: Apache-2.0
"""Invariants of every state of a group, and the facts against which they are checked."""

from msgspec.structs import replace

from cometmq.ha import in_sync
from cometmq.ha.in_sync import Leadership
from cometmq.ha.role import Role
from cometmq.testing.ha.world import Node, World

Messages = frozenset[tuple[int, int]]


class Violated(Exception):
    """A promise to clients was broken; the message names it."""


def check_opening(world: World, ordinal: int) -> None:
    """Check that a new master has everything that was promised before.

    That is everything that earlier masters acknowledged, confirmed or answered.
    """
    node = world.nodes[ordinal]
    check_has(node, world.acknowledged, world.answered_tables)
    if node.log[: len(world.confirmed)] != world.confirmed:
        raise Violated(f"{ordinal} opens with {node.log}, confirmed was {world.confirmed}")


def check_has(node: Node, messages: Messages, tables: frozenset[int]) -> None:
    """Check that a master has all acknowledged messages and table changes."""
    ordinal = node.member.me.ordinal
    for offset, message in messages:
        if node.log[offset : offset + 1] != (message,):
            raise Violated(f"message {message} at {offset} is lost: {ordinal} has {node.log}")
    if not tables <= set(node.tables):
        raise Violated(f"changes {set(tables)} of tables are lost: {ordinal} has {node.tables}")


def noted(world: World, ordinal: int) -> World:
    """Return the world after a master has given all answers that it may give now."""
    node = world.nodes[ordinal]
    leading = node.leading
    if leading is None or node.member.role is not Role.MASTER:
        return world
    world = _confirmed(world, node, leading)
    world = _acknowledged(world, node, leading)
    return _visible(world, leading)


def _confirmed(world: World, node: Node, leading: Leadership) -> World:
    prefix = node.log[: leading.confirmed]
    common = min(len(prefix), len(world.confirmed))
    if prefix[:common] != world.confirmed[:common]:
        raise Violated(f"logs differ below the confirm offset: {prefix}, {world.confirmed}")
    return world if len(prefix) <= len(world.confirmed) else replace(world, confirmed=prefix)


def _acknowledged(world: World, node: Node, leading: Leadership) -> World:
    if not in_sync.may_acknowledge(leading, world.left.min_in_sync):
        return world
    answered = world.acknowledged | {
        (offset, node.log[offset]) for offset in range(leading.start, leading.confirmed)
    }
    stream = world.stream(leading.epoch)
    first = stream.tables_start if stream is not None else 0
    tables = world.answered_tables | set(node.tables[first : first + leading.confirmed_tables])
    if (answered, tables) == (world.acknowledged, world.answered_tables):
        return world
    _check_count(world, leading)
    new, new_tables = answered - world.acknowledged, tables - world.answered_tables
    for other in world.nodes:  # a replaced master acknowledges only its successor's messages
        if other.member.role is Role.MASTER and other.member.epoch > leading.epoch:
            check_has(other, new, new_tables)
    return replace(world, acknowledged=answered, answered_tables=tables)


def _check_count(world: World, leading: Leadership) -> None:
    """Check that enough recorded members have the acknowledged messages (R8)."""
    record = world.cell.record if world.cell is not None else None
    is_current = record is not None and record.epoch == leading.epoch
    if is_current and record is not None and len(record.in_sync) < world.left.min_in_sync:
        raise Violated(f"acknowledged while the set has {len(record.in_sync)} members")


def _visible(world: World, leading: Leadership) -> World:
    """Return the world after consumers have read; they never see a shorter log (R6)."""
    if not in_sync.may_read(leading, leading.end):
        return world
    seen = dict(world.visible)
    for epoch, end in seen.items():
        if epoch < leading.epoch and end > leading.confirmed:
            raise Violated(f"the end goes back from {end} to {leading.confirmed}")
    if seen.get(leading.epoch, 0) >= leading.confirmed:
        return world
    seen[leading.epoch] = leading.confirmed
    return replace(world, visible=tuple(sorted(seen.items())))
