# SPDX-License-Identifier: Apache-2.0
"""docs/guides/spark.md: every Python block runs, and prints what the guide shows.

`python -m pytest spark/tests/guide --write-guide` writes the actual output into the guide.
"""

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cometmq.client.admin import AdminClient
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.remoting.message.batch import BatchItem
from cometmq.spark.options.offsets_json import Queue
from cometmq.testing.spark import fill

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "spark.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
ORDERS_A_QUEUE = 250
CONSUMED_A_QUEUE = 100


def order(queue: Queue, number: int) -> BatchItem:
    """Return an order that is the same in every run."""
    identity = ("broker-a", "broker-b").index(queue.broker_name) * 500 + queue.queue_id * 250
    identity += number
    amount = identity * 37 % 1000 / 10
    body = f'{{"id": {identity}, "shop": "shop-{identity % 3}", "amount": {amount}}}'
    tag = "large" if amount >= 80 else "small"
    properties = f"TAGS\x01{tag}\x02KEYS\x01order-{identity}\x02UNIQ_KEY\x01order-{identity}"
    return BatchItem(0, body.encode(), properties)


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[CometCluster]:
    """Two brokers with orders, and a group that has consumed some of them."""
    settings = {"mappedFileSizeCommitLog": 1 << 24}
    with CometCluster(tmp_path / "suite", settings, broker_count=2) as running:
        for topic in ("Orders", "LargeOrders"):
            create_topic(running.namesrv_addr, running.broker_addrs, topic, queue_count=2)
        fill(running.namesrv_addr, "Orders", ORDERS_A_QUEUE, make=order)
        asyncio.run(consume_some(running.namesrv_addr))
        yield running


async def consume_some(namesrv: str) -> None:
    """Commit offsets as if a consumer had consumed some of the orders."""
    async with AdminClient(namesrv) as admin:
        for broker in (await admin.masters()).values():
            for queue_id in range(2):
                await broker.commit_offset("billing", "Orders", queue_id, CONSUMED_A_QUEUE)


def normalised(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


_READ = """
rows = spark.read.format("rocketmq").options(nameServer=sys.argv[1], subscribe="Orders").load()
print(rows.count())
spark.stop()
"""


def test_first_program_finds_the_source_in_an_environment_that_is_not_activated(
    prepared: CometCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first `python3` of PATH lacks the package, as on a machine with a system's Python."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    first = BLOCK.search(GUIDE.read_text(encoding="utf-8"))
    assert first is not None
    assert "register" not in first["code"]
    job = tmp_path / "job.py"
    job.write_text(f"{first['code']}import sys\n{_READ}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, job, prepared.namesrv_addr],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [str(4 * ORDERS_A_QUEUE)], done.stderr[-2000:]


@pytest.mark.timeout(900)
def test_guide_blocks_print_what_the_guide_shows(
    spark: SparkSession, prepared: CometCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    names: dict[str, Any] = {"NAMESRV": prepared.namesrv_addr, "FOLDER": str(tmp_path)}
    text = GUIDE.read_text(encoding="utf-8")
    written: list[str] = []
    position = 0
    for block in BLOCK.finditer(text):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block["code"], str(GUIDE), "exec"), names)  # our own guide
        printed = normalised(out.getvalue())
        written.append(text[position : block.start()] + f"```python\n{block['code']}```\n")
        if printed:
            written.append(f"\n```text\n{printed}\n```\n")
        position = block.end()
        if not request.config.getoption("--write-guide", default=False):
            assert printed == normalised(block["output"] or "")
    if request.config.getoption("--write-guide", default=False):
        GUIDE.write_text("".join(written) + text[position:], encoding="utf-8")
