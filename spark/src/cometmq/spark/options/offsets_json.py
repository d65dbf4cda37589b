# SPDX-License-Identifier: Apache-2.0
"""Offsets of queues as JSON: `{"T":{"broker-a":{"0":23,"1":-1}}}`, in options and checkpoints.

Spark compares offsets as text, so equal offsets must yield equal text: keys are sorted. The key
`$v`, which is not a legal topic, is reserved for a format version.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from cometmq.spark.errors import OptionError

EARLIEST: Final = -2
LATEST: Final = -1
VERSION_KEY: Final = "$v"

_FORM: Final = '{"topic":{"broker":{"queue":offset}}}'
_ASSIGN_FORM: Final = '{"topic":{"broker":[queue]}}'


_QueueText = Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,9})$")]
_ASSIGNED: Final = dict[str, dict[str, list[Annotated[int, Meta(ge=0, lt=10**10)]]]]


class Queue(NamedTuple):
    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} {self.broker_name} {self.queue_id}"


def to_json(offsets: Mapping[Queue, int]) -> dict[str, Any]:
    """Convert offsets to the form that Spark stores in checkpoints."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    # Sorted as text ("10" before "2"), so that any JSON tool can reproduce the order.
    for queue in sorted(offsets, key=lambda queue: (queue[0], queue[1], str(queue[2]))):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return tree


def to_text(offsets: Mapping[Queue, int]) -> str:
    """Convert offsets to text that `startingOffsets` accepts."""
    return json.dumps(to_json(offsets), separators=(",", ":"))


def from_json(tree: Any, *, source: str, lowest: int = EARLIEST) -> dict[Queue, int]:
    """Parse offsets; OptionError names `source` and the invalid part."""
    found: Mapping[str, Any] = _converted(tree, _offsets(lowest), source, _FORM)
    return {
        Queue(topic, broker_name, int(queue_id)): offset
        for topic, brokers in found.items()
        for broker_name, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def from_text(text: str, *, source: str, lowest: int = EARLIEST) -> dict[Queue, int]:
    return from_json(_load(text, source, _FORM), source=source, lowest=lowest)


def assigned_from_text(text: str, *, source: str) -> list[Queue]:
    """Parse the queues of `{"T":{"broker-a":[0,1]}}`."""
    tree = _load(text, source, _ASSIGN_FORM)
    found = {
        Queue(topic, broker_name, queue_id)
        for topic, brokers in _converted(tree, _ASSIGNED, source, _ASSIGN_FORM).items()
        for broker_name, queue_ids in brokers.items()
        for queue_id in queue_ids
    }
    if not found:
        raise OptionError(f"{source}: names no queue")
    return sorted(found)


@cache
def _offsets(lowest: int) -> Any:
    return dict[str, dict[str, dict[_QueueText, Annotated[int, Meta(ge=lowest, le=(1 << 63) - 1)]]]]


def _load(text: str, source: str, form: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{source}: invalid JSON ({error}); expected {form}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the JSON text, in which each name must be unique."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:40]!r} is given twice")
    return found


def _converted(tree: Any, type_: Any, source: str, form: str) -> Any:
    if isinstance(tree, dict) and VERSION_KEY in tree:
        raise OptionError(f"{source}: written by a newer version of this data source")
    try:
        return msgspec.convert(tree, type_)
    except msgspec.ValidationError as error:
        raise OptionError(f"{source}: {error}; expected {form}") from None
