# SPDX-License-Identifier: Apache-2.0
"""One running suite for all tests of this package."""

import pytest

from cometmq.client import AdminClient
from cometmq.peers.shared.leftovers import left_as_found
from cometmq.peers.suite import running_suite


@pytest.fixture(scope="session")
def shared_suite(tmp_path_factory):
    with running_suite(tmp_path_factory.mktemp("suite")) as suite:
        yield suite


@pytest.fixture(scope="module")
def suite(shared_suite):
    """Return the suite of all files, each of which leaves it as it found it."""
    with left_as_found(*shared_suite):
        yield shared_suite


@pytest.fixture
async def admin(suite):
    async with AdminClient(suite.namesrv) as admin:
        yield admin
