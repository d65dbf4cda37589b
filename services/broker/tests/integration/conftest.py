# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from cometmq.peers.forks import forked_programs

EXECUTED = {"test_idle", "test_unread"}
"""Modules about memory and processor time, whose brokers are executed, not forked."""


@pytest.fixture(autouse=True, scope="module")
def fork_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the brokers that tests start."""
    with nullcontext() if request.path.stem in EXECUTED else forked_programs():
        yield
