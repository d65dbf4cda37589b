# SPDX-License-Identifier: Apache-2.0
"""Options of the crash tests, and the folder of their helpers on the import path."""

import sys
from random import Random

import pytest

KILLS_DEFAULT = 12


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the caller say how much and from which seed."""
    parser.addoption("--kills", type=int, default=KILLS_DEFAULT, help="kill -9 in all")
    parser.addoption("--absence", type=float, default=6.0, help="s without a txn-checker")
    parser.addoption("--seed", type=int, default=1, help="same seed, same moments")


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """Return how many kills all tests together make."""
    count: int = request.config.getoption("--kills")
    return count


@pytest.fixture
def absence_s(request: pytest.FixtureRequest) -> float:
    """Return for how long the txn-checker is away, in seconds."""
    seconds: float = request.config.getoption("--absence")
    return seconds


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """Return chance that a failed test can have again."""
    seed = request.config.getoption("--seed")
    sys.stdout.write(f"--seed={seed}\n")  # shown when the test fails
    return Random(f"{seed}:{request.node.name}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here."""
    for item in items:
        item.add_marker(pytest.mark.crash)
