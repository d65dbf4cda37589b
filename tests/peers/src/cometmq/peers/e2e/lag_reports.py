# SPDX-License-Identifier: Apache-2.0
"""Lag reports of the suite's chart: a group that is behind, the collector, and jobs."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cometmq.peers.e2e import load
from cometmq.peers.e2e.kubectl import Namespace, until
from cometmq.peers.errors import PeerError

TOPIC: Final = "Invoices"
GROUP: Final = "invoice-readers"
QUEUE_COUNT: Final = 4
CONSUMED_COUNT: Final = 20
COLLECTOR: Final = "deployment/mq-cometmq-lag-collector"
CRON_JOB: Final = "cronjob/mq-cometmq-lag-report"
TIMEOUT_S: Final = 300
POLL_S: Final = 1
SMALL: Final = (
    "--set=lagReport.enabled=true",
    "--set=lagReport.schedule=@yearly",  # the tests create the jobs
    "--set=lagReport.storage.size=1Gi",
    "--set=lagReport.resources.requests.cpu=250m",
)


class LagReports:
    """`install_suite` upgrades the suite's release with further settings."""

    def __init__(
        self, mq: Namespace, namesrv: str, image: str, install_suite: Callable[..., object]
    ) -> None:
        self._mq = mq
        self._namesrv = namesrv
        repository, _, tag = image.rpartition(":")
        self._image = (
            f"--set=lagReport.image.repository={repository}",
            f"--set-string=lagReport.image.tag={tag}",
        )
        self._install_suite = install_suite

    def install(self, *settings: str) -> None:
        self._install_suite("upgrade", *SMALL, *self._image, *settings)

    @contextmanager
    def group_behind(self) -> Iterator[None]:
        """Have a topic and a group that has read its first messages; delete both at the end."""
        self._cometmq("topic", "create", TOPIC, "--queues", str(QUEUE_COUNT))
        self.produce(CONSUMED_COUNT)
        consume = ("consume", TOPIC, "--group", GROUP, "--from", "first", "--timeout", "120")
        self._cometmq(*consume, "--max", str(CONSUMED_COUNT))
        try:
            yield
        finally:
            self._install_suite("upgrade")
            claim = "app.kubernetes.io/component=lag-collector"
            until(lambda: not self._mq.list("pvc", claim), TIMEOUT_S, "the history is gone")
            self._cometmq("topic", "delete", TOPIC, "--yes")
            self._cometmq("group", "delete", GROUP, "--topics", "--yes")

    def produce(self, count: int) -> None:
        self._cometmq("produce", TOPIC, "invoice", "--count", str(count))

    def _cometmq(self, *words: str) -> str:
        return self._mq.kubectl("exec", load.POD, "--", "cometmq", *words, "-n", self._namesrv)

    def _in_collector(self, *words: str) -> str:
        return self._mq.kubectl("exec", COLLECTOR, "--", *words)

    def this_minute(self) -> int:
        """Return the number of the snapshot that the collector would take now."""
        return int(self._in_collector("date", "+%s")) // 60

    def _snapshots(self) -> list[int]:
        """Return the numbers of the complete snapshots."""
        folder = "/data/history/raw/progress"
        try:
            names = self._in_collector("find", folder, "-name", "snap-*.parquet")
        except PeerError:  # there is none, and no folder for it
            return []
        return [int(Path(one).stem.removeprefix("snap-")) for one in names.split()]

    def until_snapshot(self, first: int) -> None:
        """Wait for a complete snapshot with this number or a later one."""
        self._mq.kubectl("rollout", "status", COLLECTOR, f"--timeout={TIMEOUT_S}s")
        until(
            lambda: max(self._snapshots(), default=0) >= first, TIMEOUT_S, f"snapshot {first}",
            poll_s=POLL_S,
        )  # fmt: skip

    def run(self, job: str, look: Callable[[], None] = lambda: None) -> tuple[Any, float]:
        """Run a job of the CronJob, and `look` until it ends; return its report and the seconds."""
        self._mq.kubectl("create", "job", job, f"--from={CRON_JOB}")
        started = time.monotonic()

        def has_succeeded() -> bool:
            look()
            status = self._mq.get("job", job).get("status", {})
            if status.get("failed"):
                raise PeerError(self._mq.kubectl("logs", f"job/{job}", "--all-containers"))
            return bool(status.get("succeeded") == 1)

        until(has_succeeded, TIMEOUT_S, f"{job} has succeeded", poll_s=POLL_S)
        seconds = time.monotonic() - started
        return json.loads(self._in_collector("cat", "/data/report/report.json")), seconds
