# SPDX-License-Identifier: Apache-2.0
"""The examples run unchanged."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from cometmq.client.testing import MemoryCluster

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
EXPECTED = {
    "orderly": "".join(
        f"{order} {step}\n"
        for order in ("order-17", "order-18")
        for step in ("packed", "sent", "delivered")
    ),
    "broadcasting": "one drops book\ntwo drops book\n",
    "own_queues": "4 queues left with 20 messages\n",
    "drain_on_signal": "finished one book\nleft\nfinished one book\nleft\n",
    "pull_by_hand": "copied 10\n",
    "dead_letters": "Bills ('order-17',) no address\n",
    "request_reply": "12.90 for one book\nno reply to the request to the topic NobodyListens "
    "in 3000 ms: it is stored, but no consumer of the topic has replied in time\n",
    "message_trace": "SubAfter(",
    "namespaces": "globex Orders order of globex\n",
    "transactions": "12.9 COMMIT\n-1 ROLLBACK\n",
    "hooks": "nobody may send to Secrets\n",
    "trace_context": "Invoices 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
}
"""Text that the output of some examples contains or ends with."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
async def test_an_example_runs(example: Path, cluster: MemoryCluster) -> None:
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
    assert EXPECTED.get(example.stem, "") in output.decode()
    assert "topic.unknown" not in errors.decode()  # the example creates its topics


def test_every_expectation_has_its_example() -> None:
    assert EXPECTED.keys() <= {example.stem for example in EXAMPLES}
