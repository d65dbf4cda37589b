# SPDX-License-Identifier: Apache-2.0
"""A store on a disk in memory."""

import pytest

from cometmq.store.testing.builders import StoreRig
from cometmq.store.testing.memory_disk import MemoryDisk


@pytest.fixture
def disk():
    return MemoryDisk()


@pytest.fixture
def rig(disk):
    return StoreRig(disk)
