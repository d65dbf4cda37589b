# SPDX-License-Identifier: Apache-2.0
"""A healthy Spark session prints nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from cometmq.spark.lag.job import session
spark = session("local[1]")
print(spark.range(3).count())
spark.stop()
"""
OF_THE_JVM = "WARNING: Using incubator modules: jdk.incubator.vector"
"""Printed before Spark reads any setting."""


@pytest.mark.slow
@pytest.mark.servers
def test_session_starts_silently(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == "3\n"
    assert set(done.stderr.splitlines()) <= {OF_THE_JVM}
