# SPDX-License-Identifier: Apache-2.0
"""Offsets of queues as JSON: `{"T":{"broker-a":{"0":23,"1":-1}}}`, in options and checkpoints.

Spark compares offsets as text, so equal offsets must yield equal text: keys are sorted. The key
`$v`, which is not a legal topic, is reserved for a format version.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cometmq.spark.errors import OptionError

EARLIEST: Final = -2
LATEST: Final = -1
VERSION_KEY: Final = "$v"

_FORM: Final = '{"topic":{"broker":{"queue":offset}}}'
_ASSIGN_FORM: Final = '{"topic":{"broker":[queue]}}'


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
    offsets: dict[Queue, int] = {}
    for topic, broker_name, queues in _brokers(tree, source, _FORM):
        if not isinstance(queues, dict):
            raise OptionError(f"{source}: `{topic}`.`{broker_name}` must be an object: {_FORM}")
        for text, offset in queues.items():
            queue = Queue(topic, broker_name, _queue_id(text, source))
            if (
                isinstance(offset, bool)
                or not isinstance(offset, int)
                or not lowest <= offset < 1 << 63
            ):
                raise OptionError(f"{source}: {repr(offset)[:40]} is not a valid offset of {queue}")
            offsets[queue] = offset
    return offsets


def from_text(text: str, *, source: str, lowest: int = EARLIEST) -> dict[Queue, int]:
    return from_json(_load(text, source, _FORM), source=source, lowest=lowest)


def assigned_from_text(text: str, *, source: str) -> list[Queue]:
    """Parse the queues of `{"T":{"broker-a":[0,1]}}`."""
    found: set[Queue] = set()
    for topic, broker_name, numbers in _brokers(
        _load(text, source, _ASSIGN_FORM), source, _ASSIGN_FORM
    ):
        if not isinstance(numbers, list):
            raise OptionError(f"{source}: `{topic}`.`{broker_name}` must be a list: {_ASSIGN_FORM}")
        found.update(Queue(topic, broker_name, _queue_id(number, source)) for number in numbers)
    if not found:
        raise OptionError(f"{source}: names no queue")
    return sorted(found)


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


def _brokers(tree: Any, source: str, form: str) -> list[tuple[str, str, Any]]:
    if not isinstance(tree, dict):
        raise OptionError(f"{source}: must be an object; expected {form}")
    if VERSION_KEY in tree:
        raise OptionError(f"{source}: written by a newer version of this data source")
    rows = []
    for topic, brokers in tree.items():
        if not isinstance(brokers, dict):
            raise OptionError(f"{source}: `{topic}` must be an object; expected {form}")
        rows += [(topic, broker_name, rest) for broker_name, rest in brokers.items()]
    return rows


def _queue_id(text: Any, source: str) -> int:
    number = str(text)
    is_number = number.isascii() and number.isdigit() and len(number) <= 10
    if isinstance(text, bool) or not is_number or number != str(int(number)):
        raise OptionError(f"{source}: {str(text)[:40]!r} is not a valid queue id")
    return int(number)
