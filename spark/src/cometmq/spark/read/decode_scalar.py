# SPDX-License-Identifier: Apache-2.0
"""Decodes records to Arrow one by one, including the forms that `decode` rejects.

This is the reference implementation: tests compare the two decoders on random records.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.flags import SysFlag
from cometmq.remoting.message.ids import host_text
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.spark.errors import SourceError
from cometmq.spark.options.definitions import Options, Properties
from cometmq.spark.options.where import parse_where

TIMESTAMP_MS_MIN: Final = -62_135_596_800_000
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""Range that Python and Spark can represent: the years 1 to 9999."""

COMPRESSED: Final = int(SysFlag.COMPRESSED)
_INT_SPAN: Final = 1 << 32
PLAIN_BYTES_MAX: Final = 128 << 20
"""Decompressed bodies after which a batch ends. 8 MiB of records could expand to 8 GiB; those of
usual messages expand to less than this.
"""


class Overfull(Exception):  # control flow, not an error: the caller splits the batch
    """The bodies of the records before `start` fill a batch."""

    def __init__(self, start: int) -> None:
        self.start = start


class PlainBytes:
    """Counts the decompressed bodies of a batch."""

    def __init__(self) -> None:
        self._count = 0

    def check(self, start: int) -> None:
        """Raise Overfull if the batch is full; called before each decompression."""
        if self._count > PLAIN_BYTES_MAX:
            raise Overfull(start)

    def add(self, body: bytes) -> bytes:
        self._count += len(body)
        return body


class Context(msgspec.Struct, frozen=True):
    """The output schema and options that apply to all records of a task."""

    schema: pa.Schema
    broker_name: str
    has_body: bool = True
    inflate: bool = True
    properties: Properties = Properties.MAP
    tags: tuple[str, ...] = ()
    """If not empty, only messages with one of these tags are kept."""
    keys: tuple[str, ...] = ()
    """If not empty, only messages with one of these keys (column `keys`) are kept."""

    @classmethod
    def of(
        cls,
        schema: pa.Schema,
        broker_name: str,
        options: Options,
        *,
        tags: tuple[str, ...] = (),
    ) -> "Context":
        return cls(
            schema,
            broker_name,
            options.include_body,
            options.inflate,
            options.include_properties,
            tags,
            parse_where(options.where).keys or (),
        )


Value = Callable[[MessageRecord, Context], Any]


def decode_one_by_one(buffer: bytes, starts: Sequence[int], context: Context) -> pa.RecordBatch:
    """Decode the records that start at these positions; raise CorruptRecord if one is invalid, and
    Overfull if their bodies need more than one batch.
    """
    records = {start: decode_record(buffer, start) for start in starts}
    if context.tags:
        records = {at: record for at, record in records.items() if record.tags in context.tags}
    if context.keys:
        name, keys = PropertyKey.KEYS, context.keys
        records = {at: it for at, it in records.items() if it.properties.get(name) in keys}
    arrays = []
    for field in context.schema:
        if field.name == "body":
            values = _bodies(records, context)
        else:
            value = _VALUES[field.name]
            values = [value(record, context) for record in records.values()]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=context.schema)


def plain_body(body: bytes, record: MessageRecord) -> bytes:
    """Decompress a body; the error names the message."""
    try:
        return record.decompressed_body() if body else body
    except CorruptRecord as error:
        raise SourceError(
            f"the body at {record.topic} {record.queue_id} {record.queue_offset} cannot be "
            f"decompressed ({error}); set the option `inflate`=false to read it compressed"
        ) from error


def _bodies(records: Mapping[int, MessageRecord], context: Context) -> list[Any]:
    if not context.has_body:
        return [None] * len(records)
    plain = PlainBytes()
    bodies: list[Any] = []
    for start, record in records.items():
        if context.inflate and record.sys_flag & COMPRESSED:
            plain.check(start)
            bodies.append(plain.add(plain_body(record.body, record)))
        else:
            bodies.append(record.body)
    return bodies


def _properties(record: MessageRecord, context: Context) -> Any:
    if context.properties is Properties.NONE:
        return None
    if context.properties is Properties.RAW:
        return record.properties_text
    return list(record.properties.items())


def _micros(ms: int) -> int:
    return min(max(ms, TIMESTAMP_MS_MIN), TIMESTAMP_MS_MAX) * 1000


def _signed(value: int) -> int:
    return value - _INT_SPAN if value & 0x8000_0000 else value


_VALUES: Final[Mapping[str, Value]] = {
    "topic": lambda record, _: record.topic,
    "broker_name": lambda _, context: context.broker_name,
    "queue_id": lambda record, _: record.queue_id,
    "queue_offset": lambda record, _: record.queue_offset,
    "commitlog_offset": lambda record, _: record.physical_offset,
    "msg_id": lambda record, _: record.unique_key or record.offset_message_id,
    "offset_msg_id": lambda record, _: record.offset_message_id,
    "keys": lambda record, _: record.properties.get(PropertyKey.KEYS),
    "tags": lambda record, _: record.tags,
    "flag": lambda record, _: record.flag,
    "sys_flag": lambda record, _: record.sys_flag,
    "born_ts": lambda record, _: _micros(record.born_timestamp),
    "born_host": lambda record, _: host_text(record.born_host),
    "store_ts": lambda record, _: _micros(record.store_timestamp),
    "store_host": lambda record, _: host_text(record.store_host),
    "reconsume_times": lambda record, _: record.reconsume_times,
    "prepared_tx_offset": lambda record, _: record.prepared_offset,
    "body_crc": lambda record, _: _signed(record.body_crc),
    "properties": _properties,
}
