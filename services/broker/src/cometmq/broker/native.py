# SPDX-License-Identifier: Apache-2.0
"""Opens the parts of the native code that the broker uses, if it is installed and may be used:
reading ranges of the log, disk writes, syncs, TLS.

Recovery and followers pass ranges of the log to `range_reader`, which extracts the same data from
each record as the Python code. `services/broker/tests/test_native_ranges.py` compares the two.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.log_syncs import NativeSyncer
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.transport.tls_contexts import TlsEngine
from cometmq.runtime.version import VERSION
from cometmq.store.os_disk import NativeWrites
from cometmq.store.parts import NO_NATIVE_CODE, NativeCode
from cometmq.store.writing.runs import ReadRange

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "IS_BUILT",
    "IS_OUTDATED",
    "OUTDATED",
    "Breaker",
    "accel",
    "guarded",
    "header_follower",
    "open_native_code",
    "open_native_syncer",
    "open_native_writes",
    "open_tls",
    "range_reader",
    "reason_without",
]

INTERFACE: Final = 0xABD5E2D6
"""The CRC-32 of the signatures that this broker calls (`libs/accel/src/cometmq/accel/_native.pyi`).

It detects a module that was not rebuilt after a `git pull`; the version changes only with releases.
"""

try:
    from cometmq import accel
except ImportError:
    accel = None  # type: ignore[assignment]  # optional: see libs/accel
    IS_OUTDATED = False
else:
    IS_OUTDATED = getattr(accel, "INTERFACE", None) != INTERFACE
    if IS_OUTDATED:
        accel = None  # type: ignore[assignment]

IS_BUILT: Final = accel is not None
OUTDATED: Final = "cometmq-accel was built from other sources: run make setup"


def reason_without(settings: BrokerSettings) -> str | None:
    """Return why the native code is not used; None if it may be used."""
    if not settings.native_lane_enable:
        return "nativeLaneEnable=false"
    if IS_OUTDATED:
        return OUTDATED
    if not IS_BUILT:
        return "cometmq-accel is not installed"
    return _version_mismatch()


@cache
def _version_mismatch() -> str | None:
    """Return why the installed distribution has the wrong version; None if it does not.

    The result is cached, because followers ask on each connection.

    The version is in the name of the folder with the distribution's metadata. Only if that differs,
    `importlib.metadata` is used, because it loads 35 modules.
    """
    installed = Path(accel.__path__[0]).parents[1]
    if (installed / f"cometmq_accel-{VERSION}.dist-info").is_dir():
        return None
    from importlib.metadata import version  # noqa: PLC0415  # rarely needed

    if (found := version("cometmq-accel")) != VERSION:
        return f"cometmq-accel {found} does not match the broker's version {VERSION}"
    return None


class Breaker:
    """Switches one part of the work from native code to Python, until a restart, after the first
    panic of the native code. So a bug there costs only speed.

    As a context manager, it catches a panic in its block and switches.
    """

    def __init__(self, part: str, log: Log) -> None:
        self._part = part
        self._log = log
        self.is_open = False
        """Whether the native code has failed, so that Python does the work."""

    def trip(self, error: BaseException) -> None:
        self.is_open = True
        self._log.error(
            "native.failed", part=self._part, error=describe(error), action="report this bug"
        )

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> bool:
        if not isinstance(error, accel.PanicException):
            return False
        self.trip(error)
        return True


def guarded(part: str, function: Callable[P, T], log: Log) -> Callable[P, T | None]:
    """Return a native function that returns None from its first panic on: Python does the work."""
    breaker = Breaker(part, log)

    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        if not breaker.is_open:
            with breaker:
                return function(*args, **kwargs)
        return None

    return call


def range_reader(log: Log) -> ReadRange:
    return guarded("dispatch", accel.read_range, log)


def header_follower(log: Log) -> Callable[[bytes, int, int, int], tuple[int, int] | None]:
    """Return the function that follows the headers of received records
    (`cometmq.broker.copies.streams.records.FollowHeaders`).
    """
    return guarded("stream", accel.follow_headers, log)


def open_native_writes(settings: BrokerSettings) -> NativeWrites | None:
    """Return the native functions that write to the disk; None if native code may not be used."""
    if reason_without(settings) is not None:
        return None
    return NativeWrites(accel.write_files, accel.sync_files)


def open_native_syncer(settings: BrokerSettings) -> NativeSyncer | None:
    """Return the native thread that syncs the log; None if native code may not be used."""
    return accel.LogSyncer() if reason_without(settings) is None else None


def open_native_code(settings: BrokerSettings, log: Log) -> NativeCode:
    """Return the native functions for the store; an empty set if none may be used."""
    if reason_without(settings) is not None:
        return NO_NATIVE_CODE
    return NativeCode(read_range=range_reader(log), block_sums=accel.block_sums)


def open_tls(settings: BrokerSettings) -> TlsEngine | None:
    """Return the native code that serves TLS connections; None if it may not be used."""
    if not settings.native_tls_enable or reason_without(settings) is not None:
        return None
    return accel.TlsContext
