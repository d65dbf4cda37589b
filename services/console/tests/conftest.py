# SPDX-License-Identifier: Apache-2.0
from contextlib import AsyncExitStack

import pytest

from .desks import Sites


@pytest.fixture
async def sites(tmp_path):
    async with AsyncExitStack() as stack:
        yield Sites(tmp_path, stack)
