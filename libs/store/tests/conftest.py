# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a store on an in-memory disk."""

import pytest

from cometmq.store.testing.builders import StoreRig
from cometmq.store.testing.memory_disk import MemoryDisk


@pytest.fixture
def disk():
    return MemoryDisk()


@pytest.fixture
def rig(disk):
    return StoreRig(disk)
