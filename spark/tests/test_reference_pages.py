# SPDX-License-Identifier: Apache-2.0
"""The generated reference pages are up to date."""

import subprocess
import sys
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "spark_pages.py"


def test_reference_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, PAGES, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
