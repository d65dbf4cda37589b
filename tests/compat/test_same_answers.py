# SPDX-License-Identifier: Apache-2.0
"""The same requests to both makers, the same answers: code, remark, fields and body.

What differs by nature (ports, times, version counters) is masked in one place.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from cometmq.peers.cluster import Cluster
from cometmq.peers.content import create_topic
from cometmq.peers.dialect import parse
from cometmq.peers.probes import HEARTBEAT, PROBES, TOPIC, Probe, send_fields
from cometmq.peers.processes import wait_until
from cometmq.peers.records import parse_records
from cometmq.peers.wire import Answer, Connection

pytestmark = pytest.mark.compat

MESSAGES = 3
STATISTICS_TIMEOUT_S = 20.0
# Members whose values differ between two runs of one server.
VOLATILE = re.compile(
    r"(?i)timestamp|time$|counter|clientAddr|brokerAddr|Version$|consumeTps|storePath|"
    r"bootTimestamp|runtime|Ratio|Capacity"
)
ADDRESS = re.compile(r"127\.0\.0\.1[:@]\d+")


@dataclass(frozen=True)
class Side:
    """Connections to the servers of one maker."""

    broker: Connection
    namesrv: Connection

    def ask(self, probe: Probe) -> Answer:
        """Send the probe's request."""
        connection = self.broker if probe.to == "broker" else self.namesrv
        fields = {key: str(value) for key, value in probe.fields.items()}
        return connection.call(probe.code, fields, probe.body, version=probe.version)


@pytest.fixture(scope="module", params=["comet", pytest.param("java", marks=pytest.mark.slow)])
def sides(
    request: pytest.FixtureRequest,
    maker: Callable[[str], type[Cluster]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Side]]:
    """Java and another, prepared alike: a topic, three messages, a client that stays connected.

    Java beside Java shows that the probes ask for nothing that changes from run to run.
    """
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(maker(name)(tmp_path_factory.mktemp(name)))
            for name in ("java", request.param)
        ]
        yield [_prepared(cluster, stack) for cluster in clusters]


def _prepared(cluster: Cluster, stack: ExitStack) -> Side:
    """Fill one side and connect."""
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC)
    side = Side(
        stack.enter_context(Connection(cluster.broker_addrs[0], timeout_s=15)),
        stack.enter_context(Connection(cluster.namesrv_addr, timeout_s=15)),
    )
    # A Java broker cannot say how it runs in its first seconds.
    wait_until(lambda: side.broker.call(28).code == 0, STATISTICS_TIMEOUT_S, "statistics")
    for _ in range(MESSAGES):
        assert side.broker.call(310, _texts(send_fields()), b"prepared").code == 0
    heartbeat = json.dumps(HEARTBEAT).encode()
    assert side.broker.call(34, body=heartbeat).code == 0
    return side


def _texts(fields: Mapping[str, object]) -> dict[str, str]:
    """Values as they are on the wire."""
    return {key: str(value) for key, value in fields.items()}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: f"{probe.to} {probe.code} {probe.name}")
def test_both_answer_alike(sides: list[Side], probe: Probe) -> None:
    """In the order of the list: later probes see what earlier ones did, on both sides."""
    expected, actual = (_meaning(side.ask(probe), probe) for side in sides)

    assert actual == expected


def _meaning(answer: Answer, probe: Probe) -> dict[str, object]:
    """What is compared of an answer."""
    return {
        "code": answer.code,
        "remark": ADDRESS.sub("ADDRESS", answer.remark) if answer.remark else None,
        "fields": {
            key: "*" if VOLATILE.search(key) or key == "msgId" else value
            for key, value in answer.fields.items()
        },
        "body": _body_meaning(answer.body, probe.compare_body),
    }


def _body_meaning(body: bytes, how: str) -> object:
    """A body as far as two servers must agree on it."""
    if how == "no" or not body:
        return bool(body)
    if how == "records":
        return parse_records(body)
    value = parse(body.decode())
    return _member_names(value) if how == "keys" else _masked(value)


def _masked(value: Any) -> object:
    """Volatile members and addresses replaced; sets, which are arrays here, sorted."""
    if isinstance(value, dict):
        return {
            ADDRESS.sub("ADDRESS", key): "*" if VOLATILE.search(key) else _masked(member)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return sorted((_masked(item) for item in value), key=repr)
    return ADDRESS.sub("ADDRESS", value) if isinstance(value, str) else value


def _member_names(value: Any) -> object:
    """Only the names of members, to any depth; paths within names are cut."""
    if isinstance(value, dict):
        return {re.sub(r"/.*/", "/", key): _member_names(member) for key, member in value.items()}
    return "*"
