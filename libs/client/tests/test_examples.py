# SPDX-License-Identifier: Apache-2.0
"""The examples run unchanged, on new topics and on topics that hold other messages."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from cometmq.client import Message, Producer
from cometmq.client.testing import MemoryCluster

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
EXPECTED = {
    "orderly": "".join(
        rf"{order}-\w+ {step}\n"
        for order in ("order-17", "order-18")
        for step in ("packed", "sent", "delivered")
    ),
    "broadcasting": r"one drops book\ntwo drops book\n",
    "own_queues": r"4 queues left with 20 messages\n",
    "drain_on_signal": r"finished one book\nleft\nfinished one book\nleft\n",
    "pull_by_hand": r"copied 10\n",
    "dead_letters": r"Bills order-\w+ no address\n",
    "request_reply": r"12\.90 for one book\nno reply to the request to the topic NobodyListens "
    r"in 3000 ms: it is stored, but no consumer of the topic has replied in time\n",
    "message_trace": r"SubAfter\(",
    "namespaces": r"globex Orders order of globex\n",
    "transactions": r"12\.9 COMMIT\n-1 ROLLBACK\n",
    "hooks": r"nobody may send to Secrets\n",
    "trace_context": r"Invoices 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
}
"""What the output of some examples contains."""

OTHERS = (b"of another program", b"\xff\xfe\x00")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
async def test_an_example_runs_again_and_among_other_messages(
    example: Path, cluster: MemoryCluster
) -> None:
    await _run(example, cluster)
    await _fill(cluster)
    await _run(example, cluster)


async def _run(example: Path, cluster: MemoryCluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        str(example),
        env={"NAMESRV_ADDR": cluster.namesrv, "PATH": os.defpath},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    assert re.search(EXPECTED.get(example.stem, ""), output.decode())
    assert "topic.unknown" not in errors.decode()  # the example creates its topics


async def _fill(cluster: MemoryCluster) -> None:
    """Store other messages in every queue that programs may send to."""
    async with Producer("others", cluster.namesrv) as producer:
        for topic in cluster.topics():
            if topic.startswith("%") or topic.isupper():  # retries, and RocketMQ's own topics
                continue
            for queue in await producer.queues(topic):
                for body in OTHERS:
                    await producer.send(Message(topic, body), queue=queue)


def test_every_expectation_has_its_example() -> None:
    assert EXPECTED.keys() <= {example.stem for example in EXAMPLES}
