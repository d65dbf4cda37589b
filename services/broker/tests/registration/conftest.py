# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.tables.topics import Topics
from cometmq.testing.broker.namesrvs import ScriptedNamesrvs, config


@pytest.fixture
def namesrvs() -> ScriptedNamesrvs:
    return ScriptedNamesrvs()


@pytest.fixture
def topics() -> Topics:
    table = Topics(clock_ms=lambda: 5)
    table.put(config("T"))
    return table
