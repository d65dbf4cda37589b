# SPDX-License-Identifier: Apache-2.0
"""How the guide's output is refreshed."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch."""
    parser.addoption("--write-guide", action="store_true", help="write outputs into the guide")
