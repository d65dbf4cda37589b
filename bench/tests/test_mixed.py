# SPDX-License-Identifier: Apache-2.0
"""The mixed workload takes the native path."""

import pytest
from macro import mixed
from macro.scenarios import Plan
from macro.workloads import MIXED

from cometmq.broker.native import IS_BUILT

SHARE_MIN = 0.95
"""Usually 0.99; on a machine that stops the senders for a moment, pulls find nothing."""


@pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")
def test_a_normal_day_takes_the_native_path(tmp_path, monkeypatch):
    monkeypatch.setattr(mixed, "RATE", 4_000)
    monkeypatch.setattr(mixed, "DELAYED_RATE", 200)
    plan = Plan(
        directory=tmp_path, servers=["comet"], rivals=[], rounds=1, seconds=3.0, warmup_s=0.2,
        serialization="json", catch_up_bytes=0, is_preferred=False, say=lambda _line: None,
    )  # fmt: skip

    mixed.run_mixed(plan)

    (sample,) = plan.samples[MIXED.name]["comet"]
    assert sample["native_share"] >= SHARE_MIN
    assert sample["messages_per_s"] > 500
