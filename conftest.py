# SPDX-License-Identifier: Apache-2.0
"""What holds for every test of the workspace."""

import logging
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

# A shell that runs the tests in the background has them ignore SIGINT, and whatever programs
# they start with them; tests that interrupt a program need the ordinary behaviour.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes inputs slow; that says nothing about the code.
hypothesis.settings.register_profile(
    "cometmq", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("cometmq")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Undo `cometmq.runtime.logging.configure`, which a program calls when a test runs it.

    The client writes to structlog once that is configured, so later tests would miss its lines.
    """
    root = logging.getLogger()  # noqa: TID251  # what the program configures
    handlers, level = root.handlers[:], root.level
    yield
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)
