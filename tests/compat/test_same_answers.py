# SPDX-License-Identifier: Apache-2.0
"""The same requests to both implementations get the same answers: code, remark, fields and body.

Values that always differ (ports, times, version counters) are masked in one place.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from cometmq.broker.handlers.runtime_info import OWN_KEYS
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import create_topic
from cometmq.peers.dialect import parse
from cometmq.peers.probe import (
    FIRST_ID,
    HEARTBEAT,
    TOPIC,
    Probe,
    end_fields,
    pull_fields,
    send_fields,
)
from cometmq.peers.probes import PROBES
from cometmq.peers.processes import wait_until
from cometmq.peers.records import parse_records
from cometmq.peers.settled import wait_for_dispatch
from cometmq.peers.wire import Answer, Connection

pytestmark = pytest.mark.compat

MESSAGES = 3
STATISTICS_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
TX_TOPIC, PREPARED = "SameTransactions", 4
# Members whose values differ between two runs of one server.
VOLATILE = re.compile(
    r"(?i)timestamp|time$|counter|clientAddr|brokerAddr|Version$|consumeTps|storePath|"
    r"bootTimestamp|runtime|Ratio|Capacity"
)
ADDRESS = re.compile(r"127\.0\.0\.1[:@]\d+")


@dataclass(frozen=True)
class Side:
    cluster: Cluster
    broker: Connection
    namesrv: Connection

    def ask(self, probe: Probe) -> Answer:
        """Send the probe's request once the messages of earlier probes are dispatched."""
        if probe.to == "broker":
            wait_for_dispatch(self.cluster)
        connection = self.broker if probe.to == "broker" else self.namesrv
        fields = {key: str(value) for key, value in probe.fields.items()}
        return connection.call(probe.code, fields, probe.body, version=probe.version)


@pytest.fixture(scope="module", params=["comet", pytest.param("java", marks=pytest.mark.slow)])
def sides(
    request: pytest.FixtureRequest,
    maker: Callable[[str], type[Cluster]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Side]]:
    """Java and another server in the same state: a topic, three messages, a connected client.

    Comparing Java with Java shows that the answers do not change from run to run.
    """
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(maker(name)(tmp_path_factory.mktemp(name)))
            for name in ("java", request.param)
        ]
        yield [_prepared(cluster, stack) for cluster in clusters]


def _prepared(cluster: Cluster, stack: ExitStack) -> Side:
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC)
    side = Side(
        cluster,
        stack.enter_context(Connection(cluster.broker_addrs[0], timeout_s=ANSWER_TIMEOUT_S)),
        stack.enter_context(Connection(cluster.namesrv_addr, timeout_s=ANSWER_TIMEOUT_S)),
    )
    # A Java broker has no runtime info in its first seconds.
    wait_until(lambda: side.broker.call(28).code == 0, STATISTICS_TIMEOUT_S, "statistics")
    for _ in range(MESSAGES):
        assert side.broker.call(310, _texts(send_fields()), b"prepared").code == 0
    heartbeat = json.dumps(HEARTBEAT).encode()
    assert side.broker.call(34, body=heartbeat).code == 0
    return side


def _texts(fields: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in fields.items()}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: f"{probe.to} {probe.code} {probe.name}")
def test_both_answer_alike(sides: list[Side], probe: Probe) -> None:
    """Probes run in the order of the list, because later probes depend on earlier ones."""
    expected, actual = (_meaning(side.ask(probe), probe.compare_body) for side in sides)
    if probe.name == "run-time information":
        table: Any = actual["body"]
        for key in OWN_KEYS:
            table["table"].pop(key, None)

    assert actual == expected


def test_half_messages_are_resumed_and_committed_alike(sides: list[Side]) -> None:
    """Both servers give the same answers to codes 323 and 37, and deliver the same message."""
    expected, actual = (_transaction(side.broker) for side in sides)

    assert actual == expected
    assert [answer["code"] for answer in actual[0]] == [0, 0, 0]
    assert len(actual[1]) == 1


def _transaction(broker: Connection) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01SameProducer\x02UNIQ_KEY\x01{FIRST_ID}"
    half = broker.call(310, _texts(send_fields(b=TX_TOPIC, i=properties, f=PREPARED)), b"half")
    message_id = half.fields["msgId"]
    resumed = broker.call(323, {"msgId": message_id})
    ended = broker.call(37, _texts(end_fields(commitLogOffset=int(message_id[16:], 16))))
    found: list[dict[str, object]] = []

    def is_delivered() -> bool:
        answer = broker.call(11, _texts(pull_fields(topic=TX_TOPIC)))
        found[:] = parse_records(answer.body)
        return bool(found)

    wait_until(is_delivered, STATISTICS_TIMEOUT_S, f"a message in {TX_TOPIC}")
    return [_meaning(answer, "json") for answer in (half, resumed, ended)], found


def _meaning(answer: Answer, compare_body: str) -> dict[str, object]:
    return {
        "code": answer.code,
        "remark": ADDRESS.sub("ADDRESS", answer.remark) if answer.remark else None,
        "fields": {
            key: "*" if VOLATILE.search(key) or key == "msgId" else value
            for key, value in answer.fields.items()
        },
        "body": _body_meaning(answer.body, compare_body),
    }


def _body_meaning(body: bytes, how: str) -> object:
    if how == "no" or not body:
        return bool(body)
    if how == "records":
        return parse_records(body)
    value = parse(body.decode())
    return _member_names(value) if how == "keys" else _masked(value)


def _masked(value: Any) -> object:
    """Replace volatile members and addresses; sort the arrays that represent sets."""
    if isinstance(value, dict):
        return {
            ADDRESS.sub("ADDRESS", key): "*" if VOLATILE.search(key) else _masked(member)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return sorted((_masked(item) for item in value), key=repr)
    return ADDRESS.sub("ADDRESS", value) if isinstance(value, str) else value


def _member_names(value: Any) -> object:
    """Keep only the names of members, at any depth; cut paths within names."""
    if isinstance(value, dict):
        return {re.sub(r"/.*/", "/", key): _member_names(member) for key, member in value.items()}
    return "*"
