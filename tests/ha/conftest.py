# SPDX-License-Identifier: Apache-2.0
"""Defines the options of the fault tests of broker groups, and prints the report after them."""

import pytest

from cometmq.peers.ha.faults import DECKS
from cometmq.peers.ha.report import Outages

FAULTS_DEFAULT = 18
OUTAGES = pytest.StashKey[dict[str, Outages]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults", type=int, default=FAULTS_DEFAULT, help="number of faults in all groups together"
    )
    parser.addoption(
        "--fault-deck", choices=sorted(DECKS), default="all", help="kinds of faults to draw from"
    )
    parser.addoption("--fault-seed", type=int, default=1, help="seed of the faults and moments")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OUTAGES] = {}


@pytest.fixture
def outages(request: pytest.FixtureRequest) -> Outages:
    """The outages that senders measured, by kind of fault; printed at the end of the run."""
    return request.config.stash[OUTAGES].setdefault(request.node.name, Outages())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seed = f"--fault-seed={config.getoption('--fault-seed')}"
    total = Outages()
    if not config.stash[OUTAGES]:
        return
    for name, found in config.stash[OUTAGES].items():
        total.add_all(found)
        terminalreporter.section(f"{name} {seed}")
        terminalreporter.write("".join(f"{line}\n" for line in found.table()))
    terminalreporter.section(f"goals, all groups {seed}")
    terminalreporter.write("".join(f"{line}\n" for line in total.goals()))
