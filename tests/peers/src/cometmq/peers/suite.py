# SPDX-License-Identifier: Apache-2.0
"""A name server, a broker and a txn-checker in one process, as users start them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.peers.shared.patience import patience

START_TIMEOUT_S: Final = 180


class Suite(NamedTuple):
    """The addresses of a running suite, and its data."""

    namesrv: str
    broker: str
    data: Path


@contextmanager
def running_suite(folder: Path) -> Iterator[Suite]:
    """Run `cometmq standalone` in a folder; its broker has SQL92 filters."""
    (folder / "data").mkdir()
    (folder / "data" / "broker.conf").write_text("enablePropertyFilter=true\n")
    namesrv_port, broker_port = free_port(), free_broker_port()
    options = [
        *("--data", str(folder / "data"), "--namesrv-port", str(namesrv_port)),
        *("--broker-port", str(broker_port), "--http-port", "-1"),
    ]
    child = Child(
        "suite", [str(PROGRAM), "standalone", *options], log_path=folder / "log", cwd=folder
    )
    suite = Suite(f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{broker_port}", folder / "data")
    try:
        child.wait_for_log("is running", START_TIMEOUT_S)
        with patience(suite.namesrv, suite.broker):
            yield suite
    finally:
        child.stop(60)
