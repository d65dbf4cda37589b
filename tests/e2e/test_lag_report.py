# SPDX-License-Identifier: Apache-2.0
"""Lag reports run in the cluster: inside the pod of their job, and with executors of their own."""

from cometmq.peers.e2e.kubectl import until
from cometmq.peers.e2e.lag_reports import CONSUMED_COUNT, GROUP, QUEUE_COUNT, TIMEOUT_S, TOPIC

UNREAD_COUNT = 17
"""Sent before the first report; as many follow before the second, so that the two differ."""
EXECUTORS = "app.kubernetes.io/component=lag-executor"
EXECUTOR_COUNT = 2
WITH_EXECUTORS = (
    f"--set=lagReport.executors.count={EXECUTOR_COUNT}",
    "--set=lagReport.executors.cores=1",
    "--set=lagReport.executors.cpu=250m",
    "--set=lagReport.executors.memory=1g",
)


def assert_behind(report, unread):
    """Check the figures of the group, in total and by queue."""
    assert [one["lag_sum"] for one in report["group"] if one["group"] == GROUP] == [unread]
    queues = [one for one in report["queue"] if (one["group"], one["topic"]) == (GROUP, TOPIC)]
    assert len(queues) == QUEUE_COUNT
    assert sum(one["consumer_offset"] for one in queues) == CONSUMED_COUNT
    assert sum(one["max_offset"] for one in queues) == CONSUMED_COUNT + unread


def test_a_report_of_the_cron_job(lag_reports, report):
    lag_reports.produce(UNREAD_COUNT)
    lag_reports.install()
    lag_reports.until_snapshot(1)
    found, seconds = lag_reports.run("lag-report-alone")
    assert_behind(found, UNREAD_COUNT)
    report.add("lag report in its job's pod", "until it is written", seconds, unit="s")


def test_a_report_with_executors(ready, lag_reports, report):
    """Spark runs tasks in pods that the report creates and deletes."""
    lag_reports.install(*WITH_EXECUTORS)
    lag_reports.produce(UNREAD_COUNT)
    lag_reports.until_snapshot(lag_reports.this_minute() + 1)
    seen: dict[str, set[str]] = {}

    def look():
        for pod in ready.mq.list("pods", EXECUTORS):
            seen.setdefault(pod["metadata"]["name"], set()).add(pod["status"]["phase"])

    found, seconds = lag_reports.run("lag-report-executors", look)
    assert_behind(found, 2 * UNREAD_COUNT)
    assert len(seen) == EXECUTOR_COUNT, seen
    assert all("Running" in phases for phases in seen.values()), seen
    until(lambda: not ready.mq.list("pods", EXECUTORS), TIMEOUT_S, "the executors are gone")
    scenario = f"lag report with {EXECUTOR_COUNT} executors"
    report.add(scenario, "until it is written", seconds, unit="s")
