# SPDX-License-Identifier: Apache-2.0
"""Lag reports run in the cluster: inside the pod of their job, and with executors of their own."""

import json
import time
from pathlib import Path

import pytest

from cometmq.peers.e2e import load
from cometmq.peers.e2e.kubectl import until
from cometmq.peers.processes import PeerError

TOPIC, GROUP = "Invoices", "invoice-readers"
QUEUE_COUNT = 4
CONSUMED_COUNT = 20
UNREAD_COUNT = 17
"""Sent before the first report; as many follow before the second, so that the two differ."""
COLLECTOR = "deployment/mq-cometmq-lag-collector"
CRON_JOB = "cronjob/mq-cometmq-lag-report"
EXECUTORS = "app.kubernetes.io/component=lag-executor"
EXECUTOR_COUNT = 2
TIMEOUT_S = 300
POLL_S = 1
SMALL = (
    "--set=lagReport.enabled=true",
    "--set=lagReport.schedule=@yearly",  # the test creates the jobs
    "--set=lagReport.storage.size=1Gi",
    "--set=lagReport.resources.requests.cpu=250m",
)
WITH_EXECUTORS = (
    f"--set=lagReport.executors.count={EXECUTOR_COUNT}",
    "--set=lagReport.executors.cores=1",
    "--set=lagReport.executors.cpu=250m",
    "--set=lagReport.executors.memory=1g",
)


def cometmq(world, *words):
    return world.mq.kubectl("exec", load.POD, "--", "cometmq", *words, "-n", world.namesrv)


@pytest.fixture(scope="module")
def lag(world, request):
    """Settings of a chart with lag reports; a consumer group is behind by `UNREAD_COUNT`."""
    repository, _, tag = request.config.getoption("--spark-image").rpartition(":")
    image = (
        f"--set=lagReport.image.repository={repository}",
        f"--set-string=lagReport.image.tag={tag}",
    )
    world.until_ready()
    world.until_registered()
    cometmq(world, "topic", "create", TOPIC, "--queues", str(QUEUE_COUNT))
    cometmq(world, "produce", TOPIC, "invoice", "--count", str(CONSUMED_COUNT))
    consume = ("consume", TOPIC, "--group", GROUP, "--from", "first", "--timeout", "120")
    cometmq(world, *consume, "--max", str(CONSUMED_COUNT))
    cometmq(world, "produce", TOPIC, "invoice", "--count", str(UNREAD_COUNT))
    try:
        yield (*SMALL, *image)
    finally:
        world.install_suite("upgrade")
        claim = "app.kubernetes.io/component=lag-collector"
        until(lambda: not world.mq.list("pvc", claim), TIMEOUT_S, "the history is gone")
        cometmq(world, "topic", "delete", TOPIC, "--yes")
        cometmq(world, "group", "delete", GROUP, "--topics", "--yes")


def in_collector(world, *words):
    return world.mq.kubectl("exec", COLLECTOR, "--", *words)


def this_minute(world):
    """Return the number of the snapshot that the collector would take now."""
    return int(in_collector(world, "date", "+%s")) // 60


def snapshots(world):
    """Return the numbers of the complete snapshots."""
    folder = "/data/history/raw/progress"
    try:
        names = in_collector(world, "find", folder, "-name", "snap-*.parquet")
    except PeerError:  # there is none, and no folder for it
        return []
    return [int(Path(one).stem.removeprefix("snap-")) for one in names.split()]


def until_snapshot(world, first):
    """Wait for a complete snapshot with this number or a later one."""
    world.mq.kubectl("rollout", "status", COLLECTOR, f"--timeout={TIMEOUT_S}s")
    until(
        lambda: max(snapshots(world), default=0) >= first, TIMEOUT_S, f"snapshot {first}",
        poll_s=POLL_S,
    )  # fmt: skip


def written_report(world, job, look=lambda: None):
    """Run a job of the CronJob, and `look` until it ends; return its report and the seconds."""
    world.mq.kubectl("create", "job", job, f"--from={CRON_JOB}")
    started = time.monotonic()

    def has_succeeded():
        look()
        status = world.mq.get("job", job).get("status", {})
        if status.get("failed"):
            raise PeerError(world.mq.kubectl("logs", f"job/{job}", "--all-containers"))
        return status.get("succeeded") == 1

    until(has_succeeded, TIMEOUT_S, f"{job} has succeeded", poll_s=POLL_S)
    seconds = time.monotonic() - started
    return json.loads(in_collector(world, "cat", "/data/report/report.json")), seconds


def assert_behind(report, unread):
    """Check the figures of the group, in total and by queue."""
    assert [one["lag_sum"] for one in report["group"] if one["group"] == GROUP] == [unread]
    queues = [one for one in report["queue"] if (one["group"], one["topic"]) == (GROUP, TOPIC)]
    assert len(queues) == QUEUE_COUNT
    assert sum(one["consumer_offset"] for one in queues) == CONSUMED_COUNT
    assert sum(one["max_offset"] for one in queues) == CONSUMED_COUNT + unread


def test_a_report_of_the_cron_job(ready, lag, report):
    ready.install_suite("upgrade", *lag)
    until_snapshot(ready, 1)
    found, seconds = written_report(ready, "lag-report-alone")
    assert_behind(found, UNREAD_COUNT)
    report.add("lag report in its job's pod", "until it is written", seconds, unit="s")


def test_a_report_with_executors(ready, lag, report):
    """Spark runs tasks in pods that the report creates and deletes."""
    ready.install_suite("upgrade", *lag, *WITH_EXECUTORS)
    cometmq(ready, "produce", TOPIC, "invoice", "--count", str(UNREAD_COUNT))
    until_snapshot(ready, this_minute(ready) + 1)
    seen: dict[str, set[str]] = {}

    def look():
        for pod in ready.mq.list("pods", EXECUTORS):
            seen.setdefault(pod["metadata"]["name"], set()).add(pod["status"]["phase"])

    found, seconds = written_report(ready, "lag-report-executors", look)
    assert_behind(found, 2 * UNREAD_COUNT)
    assert len(seen) == EXECUTOR_COUNT, seen
    assert all("Running" in phases for phases in seen.values()), seen
    until(lambda: not ready.mq.list("pods", EXECUTORS), TIMEOUT_S, "the executors are gone")
    scenario = f"lag report with {EXECUTOR_COUNT} executors"
    report.add(scenario, "until it is written", seconds, unit="s")
