# SPDX-License-Identifier: Apache-2.0
"""The option that updates the guide's output."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-guide", action="store_true", help="write outputs into the guide")
