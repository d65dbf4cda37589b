# SPDX-License-Identifier: Apache-2.0
"""Text is converted to option values; errors have one line."""

import pickle
import re

import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.options.definitions import FIELDS, Properties, Table, parse
from cometmq.spark.options.foreign import FOREIGN
from cometmq.spark.options.values import duration_ms


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


def test_every_option_is_described() -> None:
    for info in FIELDS:
        *_, applies, description = info.type.__metadata__
        assert description, info.name
        assert applies.extra["applies"], info.name
