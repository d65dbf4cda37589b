# SPDX-License-Identifier: Apache-2.0
"""Text is converted to option values; errors have one line."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from cometmq.spark import source
from cometmq.spark.errors import OptionError
from cometmq.spark.options.definitions import (
    FIELDS,
    FOREIGN,
    MODES,
    Mode,
    Properties,
    Table,
    check_modes,
    duration_ms,
    parse,
)
from cometmq.spark.source import RocketMQDataSource

BODY = StructType([StructField("body", BinaryType())])


def test_options_have_defaults_and_ignore_case() -> None:
    options = parse({"NAMESERVER": "a:1", "pullbatchsize": " 64 ", "fetchoffset.numretries": "0"})

    assert options.name_server == "a:1"
    assert options.pull_batch_size == 64
    assert options.fetch_num_retries == 0
    assert options.table is Table.MESSAGES
    assert options.include_properties is Properties.MAP
    assert options.fail_on_data_loss


def test_unknown_option_suggests_the_closest_name() -> None:
    with pytest.raises(
        OptionError, match="unknown option `subscribePatern`: did you mean `subscribePattern`"
    ):
        parse({"subscribePatern": "a"})
    with pytest.raises(OptionError, match="unknown option `zzz`: see the list"):
        parse({"zzz": "a"})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.bootstrap.servers", "option of Kafka; set `nameServer`"),
        ("kafka.group.id", "`commitGroup`"),
        ("Kafka.Sasl.Jaas.Config", "`secretFile`"),
        ("kafka.fetch.min.bytes", "no meaning here; remove it"),
        ("includeHeaders", "`includeProperties`"),
        ("namesrvAddr", "use `nameServer`"),
        ("path", "option `subscribe`"),
    ],
)
def test_options_of_other_sources_are_named_in_ours(name: str, advice: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option `{name}`: .*{advice}"):
        parse({name: "a"})


def test_names_of_other_sources_are_not_ours() -> None:
    ours = {info.encode_name.lower() for info in FIELDS}
    assert not ours & FOREIGN.keys()
    assert all(name == name.lower() for name in FOREIGN)
    advised = {word for text in FOREIGN.values() for word in re.findall(r"`([a-zA-Z.]+)`", text)}
    assert {word.lower() for word in advised} <= ours | {"load", "properties"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pullBatchSize", "many"),
        ("pullBatchSize", "0"),
        ("failOnDataLoss", "maybe"),
        ("table", "queues"),
        ("startingTimestamp", "-1"),
        ("endingTimestamp", "9223372036854775808"),
        ("maxTriggerDelay", "15"),
        ("group", ""),
    ],
)
def test_invalid_value_names_its_option(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"option `{name}`='{text}': "):
        parse({name: text})


TABLE = {"table": "progress"}
READ = {"subscribe": "T"}
USES: dict[str, tuple[Mode, dict[str, str], Callable[[RocketMQDataSource], Any]]] = {
    "read": (Mode.BATCH, READ, lambda it: it.reader(it.schema())),
    "readStream": (Mode.STREAM, READ, lambda it: it.streamReader(it.schema())),
    "read of a table": (Mode.TABLE, TABLE, lambda it: it.reader(it.schema())),
    "readStream of a table": (Mode.TABLE, TABLE, lambda it: it.streamReader(it.schema())),
    "write": (Mode.WRITE, {"topic": "T"}, lambda it: it.writer(BODY, overwrite=False)),
    "writeStream": (Mode.WRITE, {"topic": "T"}, lambda it: it.streamWriter(BODY, overwrite=False)),
}
TEXTS = {
    "table": "messages",
    "subscribe": "T",
    "topic": "T",
    "assign": '{"T":{"b":[0]}}',
    "startingOffsets": "earliest",
    "startingOffsetsByTimestamp": '{"T":{"b":{"0":5}}}',
    "endingOffsetsByTimestamp": '{"T":{"b":{"0":5}}}',
    "minPartitions": "8",
    "maxRecordsPerPartition": "8",
    "maxOffsetsPerTrigger": "8",
    "minOffsetsPerTrigger": "8",
    "startingTimestamp": "5",
    "endingTimestamp": "5",
}


@pytest.mark.parametrize("use", USES)
def test_every_option_has_an_effect_or_is_refused(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option is refused even if it is given its default."""
    monkeypatch.setattr(source, "check_load", lambda _: None)
    mode, needed, make = USES[use]
    for info in FIELDS:
        name = info.encode_name
        text = TEXTS.get(name, str(info.default))
        given = {"nameServer": "a:1", **needed, name.upper(): text}
        try:
            make(RocketMQDataSource(given))
            refusal = ""
        except OptionError as error:
            refusal = str(error)
        assert (f"option `{name}` is for " in refusal) is (mode not in MODES[name]), (name, refusal)


def test_options_for_the_other_direction_are_refused_with_the_fix() -> None:
    for names, modes, fix in (
        (("batchBytes", "maxInFlight", "dedupId"), (Mode.BATCH, Mode.STREAM), "remove it"),
        (("startingOffsets", "pullBatchSize", "columns"), (Mode.WRITE,), "remove it"),
        (("endingOffsets", "endingTimestamp"), (Mode.STREAM,), "remove it"),
        (("maxTriggerDelay", "commitGroup", "failOnDataLoss"), (Mode.BATCH,), "remove it"),
        (("subscribe",), (Mode.WRITE,), "name the topic with `topic`"),
        (("timestampBudget",), (Mode.BATCH, Mode.STREAM), "remove it"),
    ):
        for name in names:
            with pytest.raises(OptionError, match=f"`{name}` is for .*, not for .*: {fix}$"):
                check_modes([name], *modes)


def test_options_of_spark_itself_are_ignored() -> None:
    assert parse({"checkpointLocation": "/x", "queryName": "q"}) == parse({})


def test_secrets_are_masked_but_pickled() -> None:
    options = parse({"accessKey": "ann", "secretKey": "s3cret", "securityToken": "t0ken"})

    assert "s3cret" not in repr(options)
    assert "t0ken" not in repr(options)
    assert "ann" in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(("text", "ms"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000)])
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms
