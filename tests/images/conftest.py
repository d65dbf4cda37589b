# SPDX-License-Identifier: Apache-2.0
"""Options of the tests of the images; `make images-test` sets them."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--base-image", default="python:3.11-slim-bookworm")
    parser.addoption("--build-network", default="default")
