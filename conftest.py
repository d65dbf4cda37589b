# SPDX-License-Identifier: Apache-2.0
"""Set up order, signals, Hypothesis, logging and the disk for all tests in the workspace."""

import gc
import hashlib
import logging
import operator
import os
import signal
import socket
import stat
import subprocess
import sys
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import Any, NoReturn

import hypothesis
import pytest

_interrupts: list[int] = []


def _interrupt(number: int, _frame: object) -> NoReturn:
    """End the run at Ctrl-C.

    With Python's own handler, `asyncio.run` and pytest-asyncio would turn the first Ctrl-C into a
    cancellation of the running test, which may pass all the same, and the run would go on.
    """
    _interrupts.append(number)
    raise KeyboardInterrupt


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Stop also if the code under test has handled the KeyboardInterrupt."""
    if _interrupts:
        item.session.shouldstop = "Ctrl-C"


# In the background of a shell, tests and the programs that they start inherit an ignored SIGINT;
# under nohup, also an ignored SIGHUP. Tests that interrupt a program need the ordinary behaviour.
signal.signal(signal.SIGINT, _interrupt)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection() -> None:
    """Collect without the garbage collector, which would visit 14,000 new tests again and again."""
    gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the seed of the order."""
    parser.addoption(
        "--order-seed", type=int, help="draw the order of files and tests from this seed again"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw a seed; a worker uses the one of its controller."""
    if config.option.order_seed is None:
        drawn = SystemRandom().randrange(10_000)
        config.option.order_seed = getattr(config, "workerinput", {}).get("order_seed", drawn)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the seed to a worker of pytest-xdist."""
    node.workerinput["order_seed"] = node.config.option.order_seed


def pytest_sessionstart(session: pytest.Session) -> None:
    """Show the seed also under `-q`, which leaves the header out."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        seed = session.config.option.order_seed
        reporter.write_line(f"random order: --order-seed={seed} repeats it")


@pytest.hookimpl(tryfirst=True)  # pytest then puts the tests of a parameter of a fixture together
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle files, and tests in their files; the suites that have a target keep their order.

    Two tests have the same order in each selection. Tests that take minutes come first: one that
    starts last keeps a single worker busy.
    """
    ordered = [config.rootpath / it for it in config.getini("norecursedirs") if "/" in it]

    def place(item: pytest.Item) -> tuple[bool, str, str]:
        is_late = item.get_closest_marker("first") is None
        if any(map(item.path.is_relative_to, ordered)):
            return is_late, "", ""
        return is_late, _drawn(config, str(item.path)), _drawn(config, item.nodeid)

    items.sort(key=place)
    if hypothesis.settings.get_current_profile_name() != "long":
        _sample(config, items)


def _sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of tests with the marker `sampled`, drawn by the seed of the order."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            cases.setdefault((item.path, item.nodeid.split("[")[0]), []).append(item)
    left_out = set[pytest.Item]()
    for found in cases.values():
        marker = found[0].get_closest_marker("sampled")
        assert marker is not None
        found.sort(key=lambda item: _drawn(config, item.nodeid))
        left_out.update(found[marker.args[0] :])
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def _drawn(config: pytest.Config, name: str) -> str:
    text = f"{config.option.order_seed} {name.removeprefix(str(config.rootpath))}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def pytest_collection_finish() -> None:
    """Keep the collector from visiting tests and modules: with them, it took 0.3 s each time.

    It looks for garbage after 10,000 new objects instead of 700: tests that fill large tables spent
    up to a third of their time on collections, all others a tenth.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


# Inputs are generated slowly on a busy machine; this is not a fault of the code. They depend on the
# code alone, so that a run can be repeated; `--hypothesis-profile=explore` draws new ones, and
# `long` more of them, as in the long forms (cometmq.peers.long_forms).
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("explore", deadline=None, suppress_health_check=SLOW)
hypothesis.settings.register_profile(
    "cometmq", hypothesis.settings.get_profile("explore"), derandomize=True, max_examples=30
)
hypothesis.settings.register_profile(
    "long", hypothesis.settings.get_profile("cometmq"), max_examples=100
)
hypothesis.settings.load_profile("cometmq")


_fsync = os.fsync


def _pass_on(file: int) -> None:
    """Check the descriptor as `fsync` does, but do not wait for the disk.

    Nothing that runs in the tests' process must outlive a crash of the machine; tests of durability
    observe a `Disk`, or kill processes, which sync as ever.
    """
    mode = os.fstat(file).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        _fsync(file)


os.fsync = os.fdatasync = _pass_on  # type: ignore[assignment]

_leave = subprocess.Popen.__exit__


def _kill_after_failure(self: subprocess.Popen[Any], kind: Any, *more: Any) -> None:
    """Kill the program of a block that failed, for which Python would wait without a deadline.

    A failed assertion is then reported at once, not when pytest-timeout ends the test.
    """
    if kind is not None:
        self.kill()
    _leave(self, kind, *more)


subprocess.Popen.__exit__ = _kill_after_failure  # type: ignore[method-assign]

# For pytest, operator/tests is the package `operator.tests`. It would replace the standard module
# by a package of that name, unless the module has a path on which the tests are found.
vars(operator)["__path__"] = [str(Path(__file__).parent / "operator")]

_serve_accepted = BaseSelectorEventLoop._accept_connection2  # type: ignore[attr-defined]  # noqa: SLF001


async def _serve_unless_closed(
    self: Any,
    protocol_factory: Any,
    accepted: socket.socket,
    extra: Any,
    sslcontext: Any = None,
    server: Any = None,
    *more: Any,
) -> None:
    """Close a connection that was accepted just before its port was closed.

    Python 3.11's asyncio drops such a connection without closing it (gh-109564); the
    ResourceWarning then fails the test during which the garbage collector finds the connection.
    """
    if server is not None and not server.is_serving():
        accepted.close()
        return
    await _serve_accepted(self, protocol_factory, accepted, extra, sslcontext, server, *more)


BaseSelectorEventLoop._accept_connection2 = _serve_unless_closed  # type: ignore[attr-defined]  # noqa: SLF001


@pytest.fixture(autouse=True)
def own_interrupts() -> None:
    """Restore the handler, which a program that ran in the test before may have replaced."""
    signal.signal(signal.SIGINT, _interrupt)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Undo `cometmq.runtime.logging.configure`, which programs call when a test runs them.

    Once structlog is configured, the client logs to it, so later tests would miss these lines.
    """
    root = logging.getLogger()  # noqa: TID251  # what the program configures
    handlers, level = root.handlers[:], root.level
    yield
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)
