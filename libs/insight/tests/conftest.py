# SPDX-License-Identifier: Apache-2.0
"""One running suite for all tests of this package, and answers made by hand."""

from typing import NamedTuple

import pytest

from cometmq.client import AdminClient
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child

START_TIMEOUT_S = 180


class Suite(NamedTuple):
    namesrv: str
    broker: str


@pytest.fixture(scope="session")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    namesrv_port, broker_port = free_port(), free_broker_port()
    options = [
        *("--data", str(folder / "data"), "--namesrv-port", str(namesrv_port)),
        *("--broker-port", str(broker_port), "--http-port", "-1"),
    ]
    child = Child(
        "suite", [str(PROGRAM), "standalone", *options], log_path=folder / "log", cwd=folder
    )
    try:
        child.wait_for_log("is running", START_TIMEOUT_S)
        yield Suite(f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{broker_port}")
    finally:
        child.stop(60)


@pytest.fixture
async def admin(suite):
    async with AdminClient(suite.namesrv) as admin:
        yield admin
