# SPDX-License-Identifier: Apache-2.0
"""Options that contradict the cluster are refused at `load()`, and the error contains the fix."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cometmq.peers.cluster import Cluster
from cometmq.spark.checks import check_load
from cometmq.spark.errors import OptionError, SourceError, TopicMissing
from cometmq.spark.options.definitions import parse
from cometmq.spark.options.offsets_json import Queue, to_text


def _check(cluster: Cluster, **options: str) -> None:
    check_load(parse({"nameServer": cluster.namesrv_addr, **options}))


def _queues(*topics: str) -> dict[Queue, int]:
    return {
        Queue(topic, broker, number): 5
        for topic in topics
        for broker in ("broker-a", "broker-b")
        for number in (0, 1)
    }


NAMES = (
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
)


@pytest.mark.parametrize("name", NAMES)
def test_offsets_of_every_queue_are_accepted(cluster: Cluster, topic: str, name: str) -> None:
    _check(cluster, subscribe=topic, **{name: to_text(_queues(topic))})


@pytest.mark.parametrize("name", NAMES)
def test_offsets_that_leave_out_a_queue_are_refused(
    cluster: Cluster, topic: str, name: str
) -> None:
    offsets = _queues(topic)
    left_out = Queue(topic, "broker-b", 1)
    del offsets[left_out]
    with pytest.raises(OptionError, match=f"`{name}` leaves out {left_out}: ") as caught:
        _check(cluster, subscribe=topic, **{name: to_text(offsets)})
    found = re.search(r"as in (.*?})(;|$)", str(caught.value))
    assert (found is None) == name.endswith("Timestamp")
    if found is not None:
        _check(cluster, subscribe=topic, **{name: found[1]})  # the advice works


def test_offsets_that_leave_out_a_topic_are_refused(
    cluster: Cluster, make_topic: Callable[[str], str]
) -> None:
    one, two = make_topic("offsets_of_one"), make_topic("offsets_of_two")
    offsets = to_text(_queues(one))
    both = f"{one},{two}"
    for where in ({"subscribe": both}, {"subscribePattern": "offsets_of_.*"}):
        with pytest.raises(OptionError, match=f"leaves out {two} broker-a 0, .* and 1 more"):
            _check(cluster, startingOffsets=offsets, **where)
    with pytest.raises(OptionError, match=f"queue {two} broker-a 0 is not part of this read"):
        _check(cluster, subscribe=one, startingOffsets=to_text(_queues(one, two)))
    _check(cluster, subscribe=both, startingOffsets=to_text(_queues(one, two)))


def test_only_assigned_queues_must_be_named(cluster: Cluster, topic: str) -> None:
    assign = f'{{"{topic}":{{"broker-a":[1]}}}}'
    _check(cluster, assign=assign, startingOffsets=to_text({Queue(topic, "broker-a", 1): -2}))
    with pytest.raises(OptionError, match=f"leaves out {topic} broker-a 1"):
        _check(cluster, assign=assign, startingOffsets="{}")


def test_missing_topic_is_an_error_if_its_offsets_are_given(cluster: Cluster) -> None:
    with pytest.raises(TopicMissing, match="`no_such_topic` does not exist"):
        _check(cluster, subscribe="no_such_topic", startingOffsets="{}")
    _check(cluster, subscribe="no_such_topic")  # a stream may have a checkpoint


@pytest.mark.parametrize("table", ["messages", "progress", "groups"])
def test_broker_given_as_name_server_is_refused(cluster: Cluster, table: str) -> None:
    options = {"nameServer": cluster.broker_addrs[0], "table": table}
    if table == "messages":
        options["subscribe"] = "any"
    with pytest.raises(SourceError, match="is a broker, not a name server; use `") as caught:
        check_load(parse(options))
    assert cluster.namesrv_addr in str(caught.value)


def test_load_refuses(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    partial = to_text({Queue(topic, "broker-a", 0): 0})
    for options, reason in (
        ({"startingOffsets": partial}, "leaves out .* broker-a 1"),
        ({"nameServer": cluster.broker_addrs[1]}, "is a broker, not a name server"),
        ({"kafka.bootstrap.servers": "a:9092"}, "option of Kafka; set `nameServer`"),
        ({"subscribePatern": "x"}, "did you mean `subscribePattern`"),
        ({"batchBytes": "1048576"}, "`batchBytes` is for writes, not for batch reads or stream"),
    ):
        given = {"nameServer": cluster.namesrv_addr, "subscribe": topic, **options}
        for reader in (spark.read, spark.readStream):
            with pytest.raises(PySparkException, match=reason):
                reader.format("rocketmq").options(**given).load()


def test_save_refuses(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    given = {"nameServer": cluster.namesrv_addr, "topic": topic, "startingOffsets": "earliest"}
    reason = "`startingOffsets` is for batch reads and stream reads, not for writes: remove it"
    rows = spark.createDataFrame([(bytearray(b"x"),)], "body binary")
    with pytest.raises(PySparkException, match=reason):
        rows.write.format("rocketmq").options(**given).mode("append").save()
    stream = spark.readStream.format("rate").load().selectExpr("'x' AS body")
    writer = stream.writeStream.format("rocketmq").options(**given)
    with pytest.raises(PySparkException, match=reason):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)


def test_user_schema_does_not_skip_the_checks(
    spark: SparkSession, cluster: Cluster, topic: str
) -> None:
    reader = spark.read.format("rocketmq").schema("body binary")
    partial = to_text({Queue(topic, "broker-a", 0): 0})
    rows = reader.options(
        nameServer=cluster.namesrv_addr, subscribe=topic, startingOffsets=partial
    ).load()
    with pytest.raises(PySparkException, match=r"leaves out .* broker-a 1"):
        rows.count()
