# SPDX-License-Identifier: Apache-2.0
"""Set-up of all tests of the workspace: signals, Hypothesis, logging."""

import logging
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

# In the background of a shell, tests and the programs that they start inherit an ignored SIGINT,
# under nohup an ignored SIGHUP; tests that interrupt a program need the ordinary behaviour.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Inputs are generated slowly on a busy machine; this is not a fault of the code. They depend on the
# code alone, so that a run can be repeated; `--hypothesis-profile=explore` draws new ones.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("explore", deadline=None, suppress_health_check=SLOW)
hypothesis.settings.register_profile(
    "cometmq", hypothesis.settings.get_profile("explore"), derandomize=True
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
