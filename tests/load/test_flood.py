# SPDX-License-Identifier: Apache-2.0
"""Short floods: of valid and mutated requests, and of requests that wait for the disk."""

from pathlib import Path

from tests.load.cold_reads import ColdReadsRun
from tests.load.flood import FloodRun


async def test_each_request_of_a_flood_is_answered_in_time(tmp_path: Path) -> None:
    findings = await FloodRun(tmp_path, requests=6_000, seed=1).run()
    assert findings.texts == []


async def test_reads_that_wait_for_the_disk_hardly_delay_those_of_others(tmp_path: Path) -> None:
    findings = await ColdReadsRun(tmp_path).run()
    assert findings.texts == []
