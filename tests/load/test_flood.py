# SPDX-License-Identifier: Apache-2.0
"""A short flood of valid and mutated requests, each of which is answered in time."""

from pathlib import Path

from tests.load.flood import FloodRun


async def test_each_request_of_a_flood_is_answered_in_time(tmp_path: Path) -> None:
    findings = await FloodRun(tmp_path, requests=6_000, seed=1).run()
    assert findings.texts == []
