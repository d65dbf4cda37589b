# SPDX-License-Identifier: Apache-2.0
"""Defines the options and fixtures of the crash tests."""

import sys
from random import Random

import pytest

KILLS_DEFAULT = 12


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, default=KILLS_DEFAULT, help="number of kill -9 in all tests together"
    )
    parser.addoption("--absence", type=float, default=6.0, help="seconds without a txn-checker")
    parser.addoption("--seed", type=int, default=1, help="seed of the moments and choices")


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    count: int = request.config.getoption("--kills")
    return count


@pytest.fixture
def absence_s(request: pytest.FixtureRequest) -> float:
    seconds: float = request.config.getoption("--absence")
    return seconds


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    seed = request.config.getoption("--seed")
    sys.stdout.write(f"--seed={seed}\n")  # shown when the test fails
    return Random(f"{seed}:{request.node.name}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.crash)
