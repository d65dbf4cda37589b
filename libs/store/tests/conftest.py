# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a store on an in-memory disk."""

import pytest

from cometmq.testing.store.builders import StoreRig
from cometmq.testing.store.memory_disk import MemoryDisk


@pytest.fixture
def disk():
    return MemoryDisk()


@pytest.fixture
def rig(disk):
    return StoreRig(disk)
