# SPDX-License-Identifier: Apache-2.0
"""The core imports no event loop, socket or clock."""

import subprocess
import sys

import pytest

FORBIDDEN = {"asyncio", "socket", "ssl", "uvloop", "random"}


@pytest.mark.parametrize(
    "module",
    ["cometmq.remoting", "cometmq.remoting.connection", "cometmq.remoting.message.record"],
)
def test_the_core_loads_no_transport(module: str) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()

    assert FORBIDDEN.isdisjoint(loaded)
    assert not any(name.startswith("cometmq.remoting.transport") for name in loaded)
