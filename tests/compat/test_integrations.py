# SPDX-License-Identifier: Apache-2.0
"""Frameworks that use RocketMQ's Java client work unchanged: Spring, Camel, OpenTelemetry."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.peers.clients.integrations import agent_options, start_integration
from cometmq.peers.clients.javaclient import VERSION_5, JavaClient
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import create_topic

pytestmark = [pytest.mark.compat, pytest.mark.slow]

COUNT = 8


@pytest.mark.parametrize("program", ["SpringProgram", "CamelProgram"])
def test_a_program_sends_and_receives(
    cluster: Cluster, log_dir: Path, fresh_name: Callable[[str], str], program: str
) -> None:
    topic = fresh_name(program)
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, topic)
    log_path = log_dir / f"{topic}.log"

    with start_integration(
        program,
        log_path,
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=f"{topic}Group",
        count=COUNT,
    ) as running:
        running.wait_for("sent", COUNT)
        running.wait_for("received", COUNT)
        bodies = {
            name: {it["body"] for it in running.events(name)} for name in ("sent", "received")
        }

    assert bodies["received"] == bodies["sent"]
    assert len(bodies["sent"]) == COUNT


def test_the_agent_traces_a_message_from_its_producer(
    cluster: Cluster, log_dir: Path, topic: str, group: str
) -> None:
    """Sends and receptions are spans, and the agent's property is in each message."""
    client = JavaClient(log_dir, VERSION_5, options=agent_options())
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}

    with client.start("send", count=COUNT, **server) as sender:
        sender.finish()
    with client.start("consume", group=group, count=COUNT, **server) as receiver:
        receiver.finish()

    published = {_trace(it) for it in sender.log().splitlines() if f"'{topic} publish'" in it}
    processed = {_trace(it) for it in receiver.log().splitlines() if f"'{topic} process'" in it}
    assert len(published) == COUNT
    assert published <= processed


def _trace(line: str) -> str:
    """Return the trace id of a line such as `'T publish' : TRACE SPAN PRODUCER [...`."""
    return line.partition("' : ")[2].split()[0]
