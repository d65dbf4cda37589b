# SPDX-License-Identifier: Apache-2.0
"""Contradictory options are rejected before any connection is opened."""

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from cometmq.spark.checks import check_batch, check_stream, check_write
from cometmq.spark.errors import OptionError, SchemaError
from cometmq.spark.options.definitions import parse
from cometmq.spark.schemas import check_schema, table_schema

NAMED = {"nameServer": "a:1", "subscribe": "T"}
JSON = '{"T":{"b":{"0":5}}}'


def test_name_server_and_topic_suffice() -> None:
    check_batch(parse(NAMED))
    check_stream(parse({**NAMED, "startingOffsets": "latest"}))
    check_batch(parse({"nameServer": "a:1", "topic": "T", "endingOffsets": JSON}))


BOTH = [
    ({"subscribe": "T"}, "`nameServer` is missing"),
    ({"nameServer": "a:1"}, "exactly one of .* not none"),
    ({**NAMED, "assign": '{"T":{"b":[0]}}'}, "exactly one of .* not `subscribe` and `assign`"),
    ({"nameServer": "a:1", "subscribePattern": "("}, "`subscribePattern`"),
    ({**NAMED, "startingOffsets": "first"}, "`startingOffsets`='first'"),
    ({**NAMED, "startingOffsets": "{"}, "`startingOffsets`: invalid JSON"),
    ({**NAMED, "topic": "U"}, "exactly one of .* not `subscribe` and `topic`"),
    (
        {**NAMED, "startingOffsets": '{"T":{"b":{"0":5,"0":6}}}'},
        "`startingOffsets`: invalid JSON .*'0' is given twice",
    ),
    ({**NAMED, "startingOffsets": '{"T":{"b":{"00":5}}}'}, "matching regex"),
    ({**NAMED, "endingOffsets": "Earliest"}, "`endingOffsets`='Earliest': must be `latest` or"),
    ({**NAMED, "endingOffsets": ""}, "`endingOffsets`='': must be `latest` or"),
    ({**NAMED, "endingOffsets": '{"T":{"b":{"0":-2}}}'}, "Expected `int` >= -1"),
    (
        {**NAMED, "startingOffsets": JSON, "endingOffsets": '{"T":{"b":{"0":4}}}'},
        "`startingOffsets` and `endingOffsets`: T b 0 ends at 4, before its start 5",
    ),
    ({**NAMED, "startingOffsetsByTimestamp": "earliest"}, "`startingOffsetsByTimestamp`"),
    (
        {**NAMED, "endingOffsetsByTimestamp": '{"T":{"b":{"0":-1}}}'},
        "`endingOffsetsByTimestamp`: Expected `int` >= 0",
    ),
    (
        {**NAMED, "startingTimestamp": "6", "endingTimestamp": "5"},
        "`startingTimestamp`=6 is after `endingTimestamp`=5",
    ),
    ({**NAMED, "group": "a b"}, "`group`: the name 'a b' of a group contains illegal"),
    ({**NAMED, "commitGroup": "g" * 256}, "`commitGroup`: the name of a group is longer than 255"),
    ({**NAMED, "startingOffsetsFromGroup": "a@b"}, "`startingOffsetsFromGroup`: the name"),
    ({**NAMED, "accessKey": "a"}, "`accessKey` and `secretKey` must be set together"),
    ({**NAMED, "accessKey": "a", "secretKey": "b", "secretFile": "c"}, "set either"),
    ({**NAMED, "subExpression": "a > 1"}, "looks like SQL"),
]


@pytest.mark.parametrize(("options", "reason"), BOTH)
def test_invalid_options_for_any_read(options: dict[str, str], reason: str) -> None:
    for check in (check_batch, check_stream):
        with pytest.raises(OptionError, match=reason):
            check(parse(options))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"startingOffsets": "latest"}, "reads nothing in a batch"),
        ({"endingOffsets": '{"T":{"b":{"0":"x"}}}'}, "`endingOffsets`"),
    ],
)
def test_invalid_options_for_a_batch(more: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        check_batch(parse({**NAMED, **more}))


def test_invalid_options_for_a_stream() -> None:
    limits = {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(OptionError, match="exceeds"):
        check_stream(parse({**NAMED, **limits}))


def test_only_messages_can_be_written() -> None:
    with pytest.raises(OptionError, match="table `groups` is read-only"):
        check_write(parse({**NAMED, "table": "groups"}))


def test_schema_may_select_columns() -> None:
    options = parse(NAMED)
    full = table_schema(options)

    check_schema(StructType([full["body"], full["topic"]]), options)
    with pytest.raises(SchemaError, match="no column `key`; it has topic, broker_name"):
        check_schema(StructType([StructField("key", StringType())]), options)
    with pytest.raises(SchemaError, match="column `topic` is string, not int"):
        check_schema(StructType([StructField("topic", IntegerType())]), options)
