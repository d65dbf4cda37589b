# SPDX-License-Identifier: Apache-2.0
"""Runs a load with the official Java client in a pod, and keeps its ledger on this machine."""

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from cometmq.peers.e2e.kubectl import Namespace
from cometmq.peers.errors import PeerError
from cometmq.peers.ha.ledger import CONCURRENT, Acknowledged, Ledger, Outage
from cometmq.peers.java.maven import JVM_OPTIONS

POD: Final = "java"
TOPIC: Final = "JavaLedger"
FOLDER: Final = "/opt/client"
"""The folder of the class path in the image; see tests/e2e/java-image.sh."""
ANSWER_TIMEOUT_S: Final = 300
POLL_S: Final = 0.1


class JavaLoad:
    """A load that runs until `finish`; all times are read from the clock of the pod's node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._answers: queue.Queue[float | None] = queue.Queue()
        self._other_lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.result: dict[str, Any] = {}
        """The totals, once the load has finished."""

    def now(self) -> float:
        return self._ask("now")

    def settle(self) -> float:
        """Wait until each sender has had a new send acknowledged, and until the consumers have
        caught up; return the time.
        """
        settled = self._ask("settle")
        self._await(lambda: self._ledger.has_caught_up(settled))
        return self.now()

    def outage(self, since: float, until: float) -> Outage:
        """Return the senders' outage between two times; raise PeerError if no send succeeded."""
        with self._lock:
            found = self._ledger.outage(since, until)
        if found is None:
            raise PeerError("no send of the Java client was acknowledged")
        return found

    def standstill(self, since: float, until: float) -> float:
        """Return the longest time between two times that one of the consumers stood still."""
        with self._lock:
            return max(
                self._ledger.standstill(consumer, since, until)
                for consumer in self._ledger.deliveries
            )

    def finish(self) -> None:
        """Stop sending, wait for the consumer, and fill in `result`."""
        self._ask("finish")
        self._await(lambda: not self._ledger.lost())
        with self._lock:
            errors = {text for _, text in self._ledger.failed.values()}
            self.result = {
                "acknowledged": len(self._ledger.acknowledged),
                "failed": len(self._ledger.failed),
                "repeated": self._ledger.repeated_count, "faults": self._ledger.faults()[:20],
                "errors": sorted(errors)[:20],
            }  # fmt: skip

    def close(self) -> None:
        """Let the client store its offsets, on which the deletion of a group depends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(ANSWER_TIMEOUT_S):
            raise PeerError(f"the Java client failed at its end: {self._output()}")

    def answer(self) -> float:
        """Wait for the answer to a command; return the time in it."""
        try:
            found = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            text = f"the Java client has not answered for {ANSWER_TIMEOUT_S} s"
            raise PeerError(f"{text}: {self._output()}") from None
        if found is None:
            raise PeerError(f"the Java client has ended: {self._output()}")
        return found

    def _ask(self, command: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self.answer()

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait until the ledger meets a condition, or until it does not in a long time."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < deadline:
            with self._lock:
                if condition():
                    return
            time.sleep(POLL_S)

    def _output(self) -> str:
        return "".join(self._other_lines[-40:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith('{"event":'):  # the client's own log
                self._other_lines.append(line)
                continue
            event = json.loads(line)
            if event["event"] == "answer":
                self._answers.put(event["at_ns"] / 1e9)
            else:
                with self._lock:
                    record(self._ledger, event)
        self._answers.put(None)


def record(ledger: Ledger, event: dict[str, Any]) -> None:
    """Enter a line of `Load.java` into a ledger."""
    number = event["number"]
    if event["event"] == "concurrent":
        ledger.note_delivery(CONCURRENT, number, event["at_ns"] / 1e9)
        return
    if event["event"] == "failed":
        ledger.senders[number] = event["sender"]
        ledger.failed[number] = (event["ended_ns"] / 1e9, event["error"])
        return
    place = (event["queue_id"], event["queue_offset"])
    if event["event"] == "received":
        ledger.receive(place, number, event["at_ns"] / 1e9)
    else:
        ledger.senders[number] = event["sender"]
        began, ended = event["began_ns"] / 1e9, event["ended_ns"] / 1e9
        ledger.acknowledged[number] = Acknowledged(began, ended, place)


@contextmanager
def running(namespace: Namespace, namesrv: str) -> Iterator[JavaLoad]:
    """Run the load in its pod; the topic must exist."""
    command = ["kubectl", "--namespace", namespace.name, "exec", "--stdin", POD, "--", "java"]
    command += ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *JVM_OPTIONS]
    command += ["-Duser.home=/tmp", "-cp", f"{FOLDER}/*", "io.cometmq.peers.Main", "load"]
    command += ["--namesrv", namesrv, "--topic", TOPIC]
    command += ["--producer-group", "java-senders", "--consumer-group", "java-readers"]
    command += ["--concurrent-group", "java-concurrent-readers"]
    command += ["--api-timeout-ms", "3000"]  # as unmodified clients have it
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            load = JavaLoad(process)
            load.answer()  # the first answer: all senders have been acknowledged
            yield load
            load.close()
        finally:
            process.kill()
