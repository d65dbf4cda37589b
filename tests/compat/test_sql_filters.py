# SPDX-License-Identifier: Apache-2.0
"""SQL92 filters: the brokers and clients of both implementations select the same messages."""

import asyncio
import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from cometmq.client import (
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    MessageSelector,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.sync import Producer as SyncProducer
from cometmq.peers.broker.client import Client
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic, named
from cometmq.peers.java import PatientJavaCluster
from cometmq.peers.java.maven import server_class_path
from cometmq.peers.paths import ROOT
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import text_of, wait_for_dispatch
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ClientConfigCheck, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import SubscriptionParseFailed
from cometmq.testing.broker.random_sql import (
    Expressions,
    java_input,
    parse_answers,
    sql_difference,
)

pytestmark = pytest.mark.compat

TOPIC: Final = "SqlTopic"
EMPTY_TOPIC: Final = "SqlHeld"
WAIT_S: Final = 120
VALUES: Final = (
    "5", "-5", "+5", "abc", "3.14", "true", "TRUE", "false", " 7 ", "2147483648", "1e3",
    "9223372036854775808", "NaN", "Infinity", "0x10", "0x1p3", "5d", "it's", "grün 绿", "05", "0",
)  # fmt: skip
EXPRESSIONS: Final = (
    "a = 5", "a <> 5", "a > 5", "a >= 5", "a < 5", "a <= 5", "5 = a", "5 < a", "a = +5", "a = -5",
    "a > -5", "a > - -3", "a = 5.0", "a > 3.0", "a < 1E3", "a > .5", "a > 2147483648", "a = 0",
    "a = 2147483648", "a < 9223372036854775807", "a = 5L", "a = '5'", "a <> '5'", "a = 'it''s'",
    "a = 'grün 绿'", "a = 'TRUE'", "a = TRUE", "a = FALSE", "a <> TRUE", "a", "NOT a", "a IS NULL",
    "a IS NOT NULL", "NOT (a IS NULL)", "missing IS NULL", "missing = 1", "a IN ('5', 'abc')",
    "a NOT IN ('5', 'abc')", "a in ('1','2','3','4','true','it''s')", "a BETWEEN 1 AND 10",
    "a NOT BETWEEN 1 AND 10", "a between 3.0 and 4.0", "b between 2 and 4", "b = 2",
    "b > 1 AND c = 'y'", "b > 2 OR c = 'x'", "NOT (b = 2)", "NOT (b > 1 AND c = 'x')",
    "b > 1 AND b < 4 AND c = 'x'", "b = 1 OR b = 2 OR c = 'y'", "b = 1 OR b = 2 AND c = 'y'",
    "(b = 1 OR b = 2) AND c = 'y'", "b > number", "b = number", "b <> number", "number > b",
    "b = 2 OR a > 5", "a > 5 OR b = 2", "b = 2 AND a > 5", "missing = 1 OR b = 2",
    "(b = 1) = (c = 'x')", "(b = 1) <> TRUE", "(b = 1) IS NULL", "(missing = 1) IS NULL", "-b = 5",
    "b = 2 ignored", "b = 2 )", "TRUE", "FALSE", "NULL", "TAGS = 'TagB'", "B = 2",
    "b /* two */ = 2", "b = -- two\n 2", "B IS NULL AND b BETWEEN 2 AND 3", "KEYS = 'key-3'",
    "TAGS IN ('TagA', 'TagC') AND b >= 3", "b > 1.5 AND b < 3.5", "a NOT BETWEEN b AND number",
)  # fmt: skip
BROKEN: Final = (
    "a >", "a IN (1)", "a > 'x'", "5", "a = NULL", "a BETWEEN 5 AND 1", "a # 5", "(a",
)  # fmt: skip
TIMES: Final = ("bornTime", "clientVersion", "dead", "deadTime")
MAKERS: Final[dict[str, type[Cluster]]] = {"comet": CometCluster, "java": PatientJavaCluster}

ClusterOf = Callable[[str], Cluster]


def messages() -> list[Message]:
    """Build a message per value of `a`, and some without `a`; other properties have few values."""
    found = []
    for number in range(len(VALUES) + 9):
        properties = {"b": str(number % 5), "c": "xyz"[number % 3], "number": str(number % 4)}
        if number < len(VALUES):
            properties["a"] = VALUES[number]
        key = f"key-{number}"
        tag = ("TagA", "TagB", "TagC")[number % 3]
        found.append(Message(TOPIC, b"body", tag=tag, keys=key, properties=properties))
    return found


@pytest.fixture(scope="module")
def filtering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOf]:
    clusters: dict[str, Cluster] = {}

    def cluster_of(name: str) -> Cluster:
        if name not in clusters:
            folder = tmp_path_factory.mktemp(f"sql-{name}")
            cluster = stack.enter_context(MAKERS[name](folder, {"enablePropertyFilter": True}))
            for topic in (TOPIC, EMPTY_TOPIC):
                create_topic(cluster.namesrv_addr, cluster.broker_addrs, topic, queue_count=2)
            _fill(cluster)
            wait_for_dispatch(cluster)
            clusters[name] = cluster
        return clusters[name]

    with ExitStack() as stack:
        yield cluster_of


@pytest.fixture(params=["comet", pytest.param("java", marks=pytest.mark.slow)])
def sql_cluster(request: pytest.FixtureRequest, filtering: ClusterOf) -> Cluster:
    return filtering(request.param)


def _fill(cluster: Cluster) -> None:
    with SyncProducer("SqlProducer", cluster.namesrv_addr) as producer:
        for message in messages():
            producer.send(message)


async def _send(cluster: Cluster, wanted: list[Message]) -> None:
    async with Producer("SqlProducer", cluster.namesrv_addr) as producer:
        for message in wanted:
            await producer.send(message)


def test_generated_expressions_have_the_results_of_the_java_filter() -> None:
    """Other expressions than those of the recording in services/broker/tests/filters."""
    expressions = Expressions(2).take(20_000)
    program = ROOT / "tests" / "peers" / "sqlfilter" / "SqlAnswers.java"
    done = subprocess.run(
        ["java", "-cp", server_class_path(), program],
        input=java_input(expressions),
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    answers = parse_answers(done.stdout)
    found = [sql_difference(*pair) for pair in zip(expressions, answers, strict=True)]
    assert [one for one in found if one] == []
    assert sum("t" in answer.results for answer in answers) > 1_000


def _matched(cluster: Cluster, java: ClientProgram) -> dict[str, set[str]]:
    printed = java.run(
        "sql-pull",
        namesrv=cluster.namesrv_addr,
        topic=TOPIC,
        group="SqlPullGroup",
        expressions="\f".join(EXPRESSIONS),
        run_timeout_s=600,
    )
    found: dict[str, set[str]] = defaultdict(set)
    for event in named(printed, "matched"):
        found[event["expression"]].add(event["key"])
    return found


def test_equal_expressions_match_equal_messages(filtering: ClusterOf, java: ClientProgram) -> None:
    """The Java client reads the topic once for each expression, from either broker."""
    ours, theirs = _matched(filtering("comet"), java), _matched(filtering("java"), java)

    assert len(EXPRESSIONS) >= 60
    for expression in EXPRESSIONS:
        assert ours[expression] == theirs[expression], expression
    assert ours["TRUE"] == {f"key-{number}" for number in range(len(messages()))}
    assert sum(0 < len(keys) < len(ours["TRUE"]) for keys in ours.values()) > 45


@pytest.mark.parametrize("expression", ["b = 2 OR c = 'y'", "TAGS = 'TagB' AND b BETWEEN 1 AND 3"])
def test_a_java_push_consumer_gets_matching_messages(
    sql_cluster: Cluster,
    java: ClientProgram,
    fresh_name: Callable[[str], str],
    expression: str,
) -> None:
    wanted = _expected(expression)
    printed = java.run(
        "consume",
        namesrv=sql_cluster.namesrv_addr,
        topic=TOPIC,
        group=fresh_name("SqlGroup"),
        sql=expression,
        count=len(wanted),
        timeout_s=WAIT_S,
    )
    assert {event["key"] for event in named(printed, "received")} == wanted


async def test_our_push_consumer_gets_matching_messages(
    sql_cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    expression = "a IS NOT NULL AND b > 2"
    wanted, seen = _expected(expression), set[str]()
    done = asyncio.Event()

    async def listener(batch: list[MessageExt]) -> None:
        seen.update(message.keys[0] for message in batch)
        if seen >= wanted:
            done.set()

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer(
        fresh_name("SqlGroup"), sql_cluster.namesrv_addr, listener=listener, options=options
    )
    consumer.subscribe(TOPIC, MessageSelector.by_sql(expression))
    async with consumer, asyncio.timeout(WAIT_S):
        await done.wait()
    assert seen == wanted


async def test_our_lite_pull_consumer_gets_matching_messages(
    sql_cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    expression = "c = 'x' AND NOT (b = 0)"
    wanted, seen = _expected(expression), set[str]()
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer(fresh_name("SqlGroup"), sql_cluster.namesrv_addr, options=options)
    consumer.subscribe(TOPIC, MessageSelector.by_sql(expression))
    async with consumer, asyncio.timeout(WAIT_S):
        while not seen >= wanted:
            seen.update(message.keys[0] for message in await consumer.poll())
    assert seen == wanted


async def test_a_held_pull_hears_of_the_message_that_matches(
    sql_cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    """Earlier messages, which the filter rejects, do not complete the pull."""
    seen: list[bytes] = []
    done = asyncio.Event()
    name = fresh_name("held")

    async def listener(batch: list[MessageExt]) -> None:
        seen.extend(message.body for message in batch)
        done.set()

    consumer = PushConsumer(
        fresh_name("SqlGroup"),
        sql_cluster.namesrv_addr,
        listener=listener,
        options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET),
    )
    consumer.subscribe(EMPTY_TOPIC, MessageSelector.by_sql(f"run = '{name}' AND n = 9"))
    async with consumer, asyncio.timeout(WAIT_S):
        await _send(
            sql_cluster,
            [
                Message(EMPTY_TOPIC, b"%d" % n, properties={"run": name, "n": str(n)})
                for n in range(10)
            ],
        )
        await done.wait()
    assert seen == [b"9"]


async def test_errors_in_expressions_have_the_same_text(
    filtering: ClusterOf,
) -> None:
    """Both brokers find the same error and describe it in the same words."""
    for expression in BROKEN:
        texts = [await _refusal(filtering(name), expression) for name in MAKERS]
        assert texts[0] == texts[1], expression
        assert texts[0]


async def _refusal(cluster: Cluster, expression: str) -> str:
    """Return the broker's error for an expression that our client would refuse to send."""
    wanted = SubscriptionData(topic=TOPIC, sub_string=expression, expression_type="SQL92")
    check = ClientConfigCheck(client_id="sql", group="SqlBroken", subscription_data=wanted)
    async with Client(cluster.broker_addrs[0]) as client:
        with pytest.raises(SubscriptionParseFailed) as caught:
            await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=encode_json(check))
    return caught.value.remark


def test_filters_go_from_one_maker_to_the_other(
    filtering: ClusterOf, java: ClientProgram, fresh_name: Callable[[str], str]
) -> None:
    group = fresh_name("SqlKept")
    files = []
    for name in MAKERS:
        cluster = filtering(name)
        java.run(
            "consume",
            namesrv=cluster.namesrv_addr,
            topic=TOPIC,
            group=group,
            sql="b = 1",
            count=len(_expected("b = 1")),
            timeout_s=WAIT_S,
        )
        path = cluster.store_dir / "config" / "consumerFilter.json"
        files.append(_kept_soon(path, group))
    ours, theirs = (
        {key: value for key, value in file.items() if key not in TIMES} for file in files
    )
    assert ours == theirs
    assert ours["bloomFilterData"]["bitNum"] == 112


@pytest.mark.slow
def test_a_java_store_with_extended_queues_goes_both_ways(
    tmp_path: Path, java: ClientProgram
) -> None:
    """Extended queues survive our broker, and both brokers find every message in the store."""
    conf = {
        "enablePropertyFilter": True,
        "enableCalcFilterBitMap": True,
        "enableConsumeQueueExt": True,
    }
    cluster: Cluster = PatientJavaCluster(tmp_path, conf)
    with cluster:
        create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC, queue_count=2)
        _fill(cluster)
        _consume(cluster, java, "SqlExtended1", sql="b = 1")
        path = cluster.store_dir / "config" / "consumerFilter.json"
        _kept_soon(path, "SqlExtended1")
        cluster.stop()
    folder = cluster.store_dir / "consumequeue_ext"
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert before

    for number, maker in enumerate((CometCluster, PatientJavaCluster), start=2):
        cluster = maker(tmp_path, conf, layout=cluster.layout)
        with cluster:
            _consume(cluster, java, f"SqlExtended{number}", sql="b = 1")
            tagged = _consume(cluster, java, f"SqlTagged{number}", tags="TagB")
            assert {event["tag"] for event in tagged} == {"TagB"}
            cluster.stop()
        if maker is CometCluster:
            assert before == {file: file.read_bytes() for file in before}
            assert _kept(path, "SqlExtended1") is not None


def _consume(
    cluster: Cluster, java: ClientProgram, group: str, **wanted: str
) -> list[dict[str, Any]]:
    expected = (
        _expected(wanted["sql"])
        if "sql" in wanted
        else {str(one.keys) for one in messages() if one.tag == wanted["tags"]}
    )
    printed = java.run(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=TOPIC,
        group=group,
        count=len(expected),
        timeout_s=WAIT_S,
        **wanted,
    )
    received = [dict(event) for event in named(printed, "received")]
    assert {event["key"] for event in received} == expected
    return received


def _kept_soon(path: Path, group: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def is_kept() -> bool:
        kept = _kept(path, group)
        found.extend([kept] if kept else [])
        return bool(found)

    wait_until(is_kept, WAIT_S, f"{group} in {path}")
    return found[0]


def _kept(path: Path, group: str) -> dict[str, Any] | None:
    topics = json.loads(text_of(path) or "{}").get("filterDataByTopic", {})
    kept: dict[str, Any] | None = topics.get(TOPIC, {}).get("groupFilterData", {}).get(group)
    return kept


def _expected(expression: str) -> set[str]:
    condition = {
        "b = 2 OR c = 'y'": lambda p: p["b"] == "2" or p["c"] == "y",
        "TAGS = 'TagB' AND b BETWEEN 1 AND 3": lambda p: p["tag"] == "TagB" and p["b"] in "123",
        "a IS NOT NULL AND b > 2": lambda p: "a" in p and p["b"] in "34",
        "c = 'x' AND NOT (b = 0)": lambda p: p["c"] == "x" and p["b"] != "0",
        "b = 1": lambda p: p["b"] == "1",
    }[expression]
    return {
        str(message.keys)
        for message in messages()
        if condition({**message.properties, "tag": message.tag or ""})
    }
