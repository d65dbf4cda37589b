# SPDX-License-Identifier: Apache-2.0
"""Defines the input columns of the sink, and converts rows to messages; does no I/O."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark

from cometmq.remoting.message.properties import (
    KEYS_SEPARATOR,
    PAIR_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    RESERVED_KEYS,
    VALUE_SEPARATOR,
    PropertyKey,
    render_properties,
)
from cometmq.spark.errors import SchemaError, SourceError
from cometmq.spark.tables.columns import INPUT

_TYPES: Final[Mapping[str, tuple[type[spark.DataType], ...]]] = {
    "body": (spark.BinaryType, spark.StringType),
    "keys": (spark.StringType, spark.ArrayType),
    "properties": (spark.MapType,),
    "queue_id": (spark.IntegerType, spark.LongType, spark.ShortType, spark.ByteType),
    "delay_level": (spark.IntegerType, spark.LongType, spark.ShortType, spark.ByteType),
    "born_ts": (spark.TimestampType,),
}
_SEPARATORS: Final = (VALUE_SEPARATOR, PAIR_SEPARATOR)
_HASH_BYTES: Final = 12


class OutgoingRow(msgspec.Struct, gc=False):
    """A message built from a row."""

    number: int
    topic: str
    body: bytes
    properties: str
    sharding_key: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    delay_level: int = 0
    born_ms: int | None = None


class RowIds:
    """Message ids built from a prefix and a row number, so that a repeated row keeps its id.

    They have the format of client ids. Their timestamp is zero, which means the start of the month:
    tools begin their search for a message there.
    """

    def __init__(self, *parts: object) -> None:
        self._hash = hashlib.sha256(":".join(map(str, parts)).encode())

    def of(self, number: int) -> str:
        named = self._hash.copy()
        named.update(b":%d" % number)
        digest = named.digest()
        return (digest[:10] + bytes(4) + digest[10:_HASH_BYTES]).hex().upper()


def check_input(schema: spark.StructType, *, has_topic: bool) -> None:
    """Reject columns that the sink does not have, or whose type it cannot write."""
    known = {column.name for column in INPUT}
    for field in schema:
        if field.name not in known:
            names = ", ".join(sorted(known))
            raise SchemaError(f"the sink has no column `{field.name}`; it has {names}")
        types = _TYPES.get(field.name, (spark.StringType,))
        if not isinstance(field.dataType, types):
            wanted = " or ".join(one.typeName() for one in types)
            raise SchemaError(
                f"column `{field.name}` is {field.dataType.simpleString()}, not {wanted}"
            )
    names_given = set(schema.fieldNames())
    if "body" not in names_given:
        raise SchemaError("the sink requires a column `body`")
    if "topic" not in names_given and not has_topic:
        raise SchemaError("the sink requires the option `topic` or a column `topic`")
    if ("queue_id" in names_given) != ("broker_name" in names_given):
        raise SchemaError("columns `queue_id` and `broker_name` must be given together")


def outgoing_rows(
    batch: pa.RecordBatch, *, first: int, topic: str, ids: RowIds | None
) -> Iterator[OutgoingRow]:
    """Convert a batch to messages; rows are numbered from `first`."""
    for index, row in enumerate(batch.to_pylist()):
        number = first + index
        try:
            yield _outgoing(row, number, topic, ids)
        except ValueError as error:
            raise SourceError(f"row {number} of the task cannot be sent: {error}") from error


def _outgoing(row: Mapping[str, Any], number: int, topic: str, ids: RowIds | None) -> OutgoingRow:
    body = row["body"]
    if body is None:
        raise ValueError("its `body` is null")
    named = topic or row.get("topic")
    if not named:
        raise ValueError("its `topic` is null")
    born = row.get("born_ts")
    level = row.get("delay_level") or 0
    if level < 0:
        raise ValueError(f"its `delay_level` is {level}")
    return OutgoingRow(
        number,
        named,
        body.encode() if isinstance(body, str) else body,
        _properties(row, ids.of(number) if ids else None, level),
        row.get("sharding_key"),
        row.get("broker_name"),
        row.get("queue_id"),
        level,
        None if born is None else int(born.timestamp() * 1000),
    )


def _properties(row: Mapping[str, Any], unique_key: str | None, level: int) -> str:
    pairs = dict(row.get("properties") or {})  # Arrow returns maps as lists of pairs
    found = {
        key: value for key, value in pairs.items() if key not in RESERVED_KEYS and value is not None
    }
    keys = row.get("keys")
    if isinstance(keys, list):
        keys = KEYS_SEPARATOR.join(key for key in keys if key)
    for name, value in (
        (PropertyKey.UNIQUE_KEY, unique_key),
        (PropertyKey.TAGS, row.get("tags")),
        (PropertyKey.KEYS, keys),
        (PropertyKey.SHARDING_KEY, row.get("sharding_key")),
        (PropertyKey.DELAY, str(level) if level else None),
    ):
        if value:
            found[name.value] = value
    found[PropertyKey.WAIT.value] = "true"
    for key, value in found.items():
        if not key or any(mark in key or mark in value for mark in _SEPARATORS):
            raise ValueError(f"property {key!r} is empty or contains a separator")
    text = render_properties(found)
    if len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise ValueError(f"its properties exceed {PROPERTIES_BYTES_MAX} bytes")
    return text
