# SPDX-License-Identifier: Apache-2.0
"""The tests of the native path are skipped without it, so its absence must be deliberate."""

import os
import shutil
from importlib.util import find_spec


def test_the_native_path_is_installed_where_it_can_be_built():
    """Fail rather than skip; `make test ACCEL=no` chooses to run without it."""
    is_left_out = shutil.which("cargo") is None or os.getenv("ACCEL") == "no"
    assert is_left_out or find_spec("cometmq.accel") is not None, (
        "cargo is installed but cometmq-accel is not: run `make setup`, or set ACCEL=no"
    )
