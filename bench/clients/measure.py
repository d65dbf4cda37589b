# SPDX-License-Identifier: Apache-2.0
"""Defines the options and the meter (wall and processor time) of all client programs.

Only the standard library is imported, because each program runs in its client's environment.
"""

import argparse
import json
import sys
import threading
import time

TIMEOUT_S = 120.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["send", "consume"])
    parser.add_argument("--namesrv", default="", help="for clients that speak remoting")
    parser.add_argument("--endpoint", default="", help="for clients that speak gRPC")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="CLIENTS")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--form", default="uvloop", help="CometMQ: uvloop, asyncio or sync")
    return parser.parse_args()


class Meter:
    """Counts messages, and measures the time from `start` or from the first message received."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done = 0
        self._lock = threading.Lock()
        self._finished = threading.Event()

    def start(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def claim(self) -> bool:
        """Reserve one message to send; return False if none are left."""
        with self._lock:
            self._done += 1
            return self._done <= self._count

    def seen(self, count: int = 1) -> bool:
        """Count received messages; return True once the last one has arrived."""
        with self._lock:
            if not self._done:
                self.start()
            self._done += count
            if self._done < self._count or self._finished.is_set():
                return False
            self._stop()
        return True

    def _stop(self) -> None:
        self._cpu_s = time.process_time() - self._cpu_s
        self._wall_s = time.perf_counter() - self._wall_s
        self._finished.set()

    def show(self) -> None:
        """End the measurement and print the result as a JSON line."""
        if not self._finished.is_set():
            self._stop()
        facts = {"messages": self._count, "seconds": self._wall_s, "cpu_seconds": self._cpu_s}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    def wait_and_show(self) -> None:
        """Wait for the last message and print the result; exit with an error after a timeout."""
        if not self._finished.wait(TIMEOUT_S):
            sys.exit(f"{self._done} of {self._count} messages in {TIMEOUT_S:.0f} s")
        self.show()
