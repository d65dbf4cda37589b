# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test on both event loops, as uvloop raises where asyncio ignores a late write."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
