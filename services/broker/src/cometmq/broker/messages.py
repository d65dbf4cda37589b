# SPDX-License-Identifier: Apache-2.0
"""What the broker changes in a message before it is stored (pure).

Hot path: `read_sent` runs once per stored message (budget 1 us with three properties); it
looks at each pair of the text once and builds no dictionary.

Compatibility: CLUSTER is added to every message. WAIT is taken out of the text of a plain
send only; batches and delayed messages keep it, as RocketMQ's do.
"""

from typing import Final

import msgspec

from cometmq.broker.names import SCHEDULE_TOPIC
from cometmq.remoting.message.properties import (
    PAIR_SEPARATOR,
    VALUE_SEPARATOR,
    PropertyKey,
    append_property,
    index_keys,
    without_property,
)
from cometmq.remoting.message.record import NewMessage

_WAIT: Final = PropertyKey.WAIT.value
_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value
_TAGS: Final = PropertyKey.TAGS.value
_KEYS: Final = PropertyKey.KEYS.value
_DELAY: Final = PropertyKey.DELAY.value
_HALF: Final = PropertyKey.TRANSACTION_PREPARED.value
_CLUSTER: Final = PropertyKey.CLUSTER.value
_LEFT_OUT: Final = frozenset({"", PropertyKey.CLUSTER.value})
_REAL_TOPIC: Final = PropertyKey.REAL_TOPIC.value
_REAL_QUEUE_ID: Final = PropertyKey.REAL_QUEUE_ID.value


class SentProperties(msgspec.Struct, gc=False):
    """The properties of a sent message: the text to store, and what the broker acts on."""

    text: str
    tags: str | None = None
    unique_key: str | None = None
    keys: str | None = None
    wait: str | None = None
    delay_level: int = 0
    is_half: bool = False

    @property
    def waits_for_disk(self) -> bool:
        """Tell whether the sender waits for flush and replication; absent means yes."""
        return self.wait is None or self.wait.lower() == "true"


def cluster_pair(cluster_name: str) -> str:
    """Return the pair that every stored message gets."""
    return f"{_CLUSTER}{VALUE_SEPARATOR}{cluster_name}"


def read_sent(text: str | None, cluster: str) -> SentProperties:
    """Read the properties of a send; `cluster` is the pair that the text gets at its end."""
    sent = SentProperties(cluster)
    if not text:
        return sent
    kept: list[str] = []
    for pair in text.split(PAIR_SEPARATOR):
        name, _, value = pair.partition(VALUE_SEPARATOR)
        if not value or name in _LEFT_OUT:
            continue
        if name == _WAIT:
            sent.wait = value
            continue
        if name == _UNIQUE_KEY:
            sent.unique_key = value
        elif name == _TAGS:
            sent.tags = value
        elif name == _KEYS:
            sent.keys = value
        elif name == _DELAY:
            sent.delay_level = _level(value)
        elif name == _HALF:
            sent.is_half = value.lower() == "true"
        kept.append(pair)
    kept.append(cluster)
    sent.text = PAIR_SEPARATOR.join(kept)
    return sent


def _level(value: str) -> int:
    """Return a delay level; RocketMQ's clients send digits, others may send anything."""
    try:
        return int(value)
    except ValueError:
        return 0


def sent_keys(sent: SentProperties) -> tuple[str, ...]:
    """Return the keys to index: the unique key first."""
    if sent.keys is None:
        return (sent.unique_key,) if sent.unique_key else ()
    return index_keys(sent.unique_key, sent.keys)


def delay(message: NewMessage, level: int, *, wait: str | None = None) -> None:
    """Turn a message into one that waits in the queue of its delay level.

    The real topic and queue travel in its properties, and stay there when it is delivered.
    """
    text = message.properties
    if wait is not None:
        text = append_property(text, _WAIT, wait)
    for name, value in ((_REAL_TOPIC, message.topic), (_REAL_QUEUE_ID, str(message.queue_id))):
        text = append_property(without_property(text, name), name, value)
    message.properties = text
    message.topic = SCHEDULE_TOPIC
    message.queue_id = level - 1


def without_delay(text: str) -> str:
    """Return the text of a message that must not wait (again)."""
    return without_property(text, _DELAY)
