# SPDX-License-Identifier: Apache-2.0
"""Starts programs in a pod of the cluster and talks to them over `kubectl exec`."""

import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cometmq.peers.e2e.kubectl import Namespace
from cometmq.peers.e2e.pods import Files, waiting_pod
from cometmq.peers.errors import PeerError
from cometmq.peers.ha.ledger import Outage
from cometmq.peers.paths import ROOT

POD: Final = "load"
SOURCES: Final = ROOT / "tests/peers/src"
MODULES: Final = (
    "", "errors", "ha/", "ha/ledger", "ha/load", "e2e/", "e2e/in_pod", "e2e/in_pod_groups",
    "e2e/in_pod_transactions",
)  # fmt: skip
"""Modules of cometmq.peers that the pod needs; a trailing slash marks a package."""
ANSWER_TIMEOUT_S: Final = 300
"""Longer than the drain of the load, so that its faults are reported."""


def pod(image: str) -> list[dict[str, Any]]:
    """Return the manifests of a pod that waits for commands, and of a ConfigMap with its code."""
    return waiting_pod(POD, image, files=Files("/load", sources()), env={"PYTHONPATH": "/load"})


def sources() -> dict[Path, str]:
    """Return the texts of the pod's modules, by path."""
    return {path: (SOURCES / path).read_text() for path in map(_path, MODULES)}


def _path(module: str) -> Path:
    folder = Path("cometmq/peers")
    if not module or module.endswith("/"):
        return folder / module / "__init__.py"
    return folder / f"{module}.py"


class PodProgram:
    """A program in the pod; each command and each answer is a line of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def now(self) -> float:
        return float(self._ask(do="now"))

    def again(self, since: float) -> float:
        """Wait until a send that began after `since` is acknowledged; return when it ended."""
        return float(self._ask(do="again", since=since))

    def answer(self) -> Any:
        try:
            line = self._lines.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise PeerError(f"the load has not answered for {ANSWER_TIMEOUT_S} s") from None
        if not line:
            errors = self._process.stderr.read() if self._process.stderr else ""
            raise PeerError(f"the load has ended: {errors}")
        return json.loads(line)

    def _ask(self, **command: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


class PodLoad(PodProgram):
    """A load that runs until `finish`; all times are read from the clock of the pod's node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.result: dict[str, Any] = {}
        """The totals, once the load has finished."""

    def settle(self) -> float:
        """Wait until all sends so far have an outcome; return the time."""
        return float(self._ask(do="settle", since=self.now()))

    def outage(self, since: float, until: float) -> Outage:
        """Return the senders' outage between two times; raise PeerError if no send succeeded."""
        found = self._ask(do="outage", since=since, until=until)
        if found is None:
            raise PeerError("no send was acknowledged")
        return Outage(**found)

    def finish(self) -> None:
        """Stop sending, wait for the consumers, and fill in `result`."""
        self.result = self._ask(do="finish")


class GroupSends(PodProgram):
    """A sender for each of several broker groups; times are as for `PodLoad`."""

    def outages(self, since: float, until: float) -> dict[str, Outage]:
        """Return each group's outage between two times; raise PeerError if a group has not
        acknowledged any send.
        """
        found = self._ask(do="outages", since=since, until=until)
        if missing := sorted(group for group, outage in found.items() if outage is None):
            raise PeerError(f"no send was acknowledged by {', '.join(missing)}")
        return {group: Outage(**outage) for group, outage in found.items()}

    def finish(self) -> dict[str, list[int]]:
        """Stop sending; return how many messages each group has acknowledged and stored."""
        counts: dict[str, list[int]] = self._ask(do="finish")
        return counts


class PodTransactions(PodProgram):
    """A producer of half messages and a consumer, which knows the command `finish` only."""

    def finish(self) -> dict[str, Any]:
        """Stop sending, wait until committed transactions are consumed, and return the totals."""
        totals: dict[str, Any] = self._ask(do="finish")
        return totals


@contextmanager
def running(namespace: Namespace, namesrv: str) -> Iterator[PodLoad]:
    """Run the load until the context is left."""
    with _started(namespace, "cometmq.peers.e2e.in_pod", namesrv) as process:
        load = PodLoad(process)
        load.answer()  # the first answer: the load is running
        yield load


@contextmanager
def sending_to(namespace: Namespace, namesrv: str, groups: Sequence[str]) -> Iterator[GroupSends]:
    """Send to each of these broker groups until the context is left."""
    with _started(namespace, "cometmq.peers.e2e.in_pod_groups", namesrv, *groups) as process:
        sends = GroupSends(process)
        sends.answer()  # the first answer: every group has acknowledged a send
        yield sends


@contextmanager
def transacting(namespace: Namespace, namesrv: str) -> Iterator[PodTransactions]:
    """Send half messages until the context is left."""
    with _started(namespace, "cometmq.peers.e2e.in_pod_transactions", namesrv) as process:
        transactions = PodTransactions(process)
        transactions.answer()  # the first answer: a transaction has been consumed
        yield transactions


@contextmanager
def _started(namespace: Namespace, module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = ["kubectl", "--namespace", namespace.name, "exec", "--stdin", POD, "--"]
    command += ["python", "-m", module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
