# SPDX-License-Identifier: Apache-2.0
"""Compiles the native load generator on first use, runs it, and decodes its JSON line."""

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

SOURCES: Final = Path(__file__).resolve().parent
BUILD: Final = SOURCES.parent / "build"
RUN_TIMEOUT_S: Final = 300.0
SENDERS_MAX_S: Final = 3600.0
FILL_ATTEMPTS: Final = 20
_FLAGS: Final = ("-O2", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra")
_PROGRAMS: Final = {
    "loadgen": (
        "loadgen.c", "consumers.c", "first.c", "frames.c", "options.c", "counters.c", "signing.c",
        "tls.c",
    ),
    "floor": ("floor.c", "frames.c", "signing.c"),
    "rivals": ("rivals.c", "counters.c"),
    "transact": ("transact.c", "frames.c", "counters.c", "signing.c"),
}  # fmt: skip
_APPEND_OPTIONS: Final = frozenset(
    {
        "body_bytes", "connections", "count", "in_flight", "queues", "seconds", "timeout",
        "topic", "topics", "warmup",
    }
)  # fmt: skip

Report: TypeAlias = dict[str, Any]


class BenchError(Exception):
    """A prerequisite of the benchmark is missing, or one of its steps has failed."""


def build(name: str) -> Path:
    """Compile a program unless it is newer than all sources."""
    target = BUILD / name
    inputs = [*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]
    if target.exists() and all(p.stat().st_mtime < target.stat().st_mtime for p in inputs):
        return target
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchError("no C compiler: install cc (Debian: apt-get install gcc libc6-dev)")
    BUILD.mkdir(parents=True, exist_ok=True)
    files = [str(SOURCES / source) for source in _PROGRAMS[name]]
    libraries = ("-DWITH_OPENSSL", "-lssl", "-lcrypto") if _has_openssl(compiler) else ()
    subprocess.run([compiler, *_FLAGS, "-o", str(target), *files, *libraries], check=True)
    return target


def _has_openssl(compiler: str) -> bool:
    """Return whether a program can use OpenSSL, which the generator needs for TLS."""
    command = [compiler, "-E", "-include", "openssl/ssl.h", "-x", "c", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def loadgen_command(mode: str, port: int, **options: object) -> list[str]:
    """Return the generator's command line; option names have underscores, and a flag is True."""
    return [str(build("loadgen")), "--mode", mode, "--port", str(port), *_words(options)]


def _words(options: Mapping[str, object]) -> list[str]:
    """Return options as a command line: names with dashes; an option that is True has no value."""
    words: list[str] = []
    for name, value in options.items():
        word = "--" + name.replace("_", "-")
        words += [word] if value is True else [word, str(value)]
    return words


def loadgen(mode: str, port: int, **options: object) -> Report:
    """Run the generator to completion and return its report, which counts rejected requests."""
    return _run(f"loadgen --mode {mode}", loadgen_command(mode, port, **options))


def transact(port: int, **options: object) -> Report:
    """Run half messages and their commits to completion; return a report of the half messages."""
    return _run("transact", [str(build("transact")), "--port", str(port), *_words(options)])


def append(protocol: str, port: int, **options: object) -> Report:
    """Send to Redis or NATS, with the options of `loadgen` that apply to them."""
    known = {name: value for name, value in options.items() if name in _APPEND_OPTIONS}
    command = [str(build("rivals")), "--protocol", protocol, "--port", str(port), *_words(known)]
    return _run(f"rivals --protocol {protocol}", command)


def _run(what: str, command: list[str]) -> Report:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"{what}: {done.stderr.strip()}")
    return _report(done.stdout)


def _report(output: str) -> Report:
    report: Report = json.loads(output.splitlines()[-1])
    return report


def fill(port: int, count: int, **options: object) -> None:
    """Store `count` messages; retry sends that a busy server rejects."""
    report: Report = {}
    for _ in range(FILL_ATTEMPTS):
        report = loadgen("send", port, count=count, **options)
        count = report["errors"]
        if not count:
            return
    raise BenchError(f"{count} messages were refused: codes {report['codes']}")


class Program:
    """A running program, which is killed at the end of the block unless it has ended."""

    def __init__(self, command: Sequence[str], *, cwd: Path | None = None) -> None:
        self._process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _line(self) -> str:
        """Return the next line of the output; an empty text if the program has failed."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _rest(self, fault: str, *, said: str = "", timeout_s: float = RUN_TIMEOUT_S) -> str:
        """Return the rest of the output; raise BenchError if the program fails."""
        output, errors = self._process.communicate(said, timeout=timeout_s)
        if self._process.returncode != 0:
            raise BenchError(f"{fault}: {errors.strip()}")
        return output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class FirstAnswer(Program):
    """A generator that retries until a starting server accepts its first request."""

    def __init__(self, mode: str, port: int, **options: object) -> None:
        super().__init__(loadgen_command(mode, port, **options))

    def accepted_s(self) -> float:
        """Return the time at which the request was accepted, in seconds of `time.monotonic`."""
        output = self._rest("the server accepted nothing in time")
        return float(json.loads(output)["accepted_ns"]) / 1e9


class Senders(Program):
    """A generator that sends at a given rate until its report is requested."""

    def __init__(self, port: int, *, rate: int, **options: object) -> None:
        super().__init__(loadgen_command("send", port, rate=rate, seconds=SENDERS_MAX_S, **options))
        self._line()  # "sending"

    def report(self) -> Report:
        """End the measured time, wait for the open requests, and return the report."""
        self._process.send_signal(signal.SIGINT)
        return _report(self._rest("the senders failed"))


class Floor(Program):
    """A responder that does no work, to measure the cost of the protocol alone."""

    def __init__(self) -> None:
        super().__init__([str(build("floor"))])
        self.port = int(self._line())
