# SPDX-License-Identifier: Apache-2.0
"""Reads whose turns do not end sooner on a slow machine."""

import math

from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.storing.store_reads import StoreReads
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.worker import Worker


def unhurry(driver: StoreDriver, worker: Worker) -> None:
    """Let searches take any processor time in a turn of the loop.

    A test counts turns, or asks many times in one. With the limit of 3 ms, its answers came in
    later turns on a busy machine.
    """
    reads = StoreReads(worker, log=NO_LOG, turn_s_max=math.inf)
    reads.deadlines.wait_ms_max = driver.reads.deadlines.wait_ms_max
    driver.reads = reads
