# SPDX-License-Identifier: Apache-2.0
"""Runs child processes with a log file, bounded waits, and a guaranteed end."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from cometmq.peers.errors import PeerError
from cometmq.peers.forks import is_forked

POLL_INTERVAL_S: Final = 0.05
LOG_TAIL_CHARS: Final = 4000


class KilledOnExit(ABC):
    """Programs that run inside a context; they are also killed if one of them does not start."""

    @abstractmethod
    def start(self) -> None:
        """Start all programs; return once they are ready."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the programs that run."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll `condition` until it holds; raise an error after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise PeerError(f"not within {timeout_s:.0f} s: {what}")
        pause.wait(POLL_INTERVAL_S)


def run_to_end(command: Sequence[str], *, timeout_s: float, cwd: Path | None = None) -> None:
    """Run a program to completion; if it fails, raise an error with its output."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        raise PeerError(f"{' '.join(command)}:\n{done.stdout}")


def _with_environment(extra: Mapping[str, str] | None) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in extra.items())] if extra else []


def _not_outliving_us() -> list[str]:
    """Return a command prefix that makes the kernel kill the program when this process ends."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


class Child:
    """A program in a separate process group that writes its output to one file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        whole = [*_with_environment(env), *command]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                whole if is_forked(whole) else [*_not_outliving_us(), *whole],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Return the exit status, or None while the program is running."""
        return self._process.poll()

    def log(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def wait_for_log(self, text: str, timeout_s: float) -> None:
        """Wait until the program has printed `text`."""
        self.wait_until(lambda: text in self.log(), timeout_s, f"{text!r} printed")

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition; raise an error as soon as the program exits."""

        def is_over() -> bool:
            return self.exit_status is not None or condition()

        try:
            wait_until(is_over, timeout_s, f"{self.name}: {what}")
        except PeerError as exc:
            raise PeerError(f"{exc}\n{self.log()[-LOG_TAIL_CHARS:]}") from exc
        if self.exit_status is not None and not condition():
            raise PeerError(
                f"{self.name} exited with {self.exit_status} before {what}\n"
                f"{self.log()[-LOG_TAIL_CHARS:]}"
            )

    def stop(self, timeout_s: float) -> int:
        """Stop with SIGTERM, or SIGKILL after `timeout_s`; return the exit status."""
        if self.exit_status is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(timeout_s)
        return self.kill()

    def kill(self) -> int:
        """Kill with SIGKILL; return the exit status."""
        self._signal(signal.SIGKILL)
        return self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
