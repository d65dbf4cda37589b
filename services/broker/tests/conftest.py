# SPDX-License-Identifier: Apache-2.0
"""A broker for the tests that need no settings."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.broker import Broker
from cometmq.testing.broker.stored import stored_broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(tmp_path) as broker:
        yield broker
