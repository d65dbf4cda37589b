# SPDX-License-Identifier: Apache-2.0
"""Comparisons of the lanes with the handlers do not depend on time."""

import math
from collections.abc import Iterator

import pytest

from cometmq.broker.filters.sql import compile_sql
from cometmq.broker.lanes import pull_lane
from cometmq.broker.storing import store_reads
from cometmq.testing.remoting.endless_turns import endless_turns

from .pull_script import EXPRESSIONS


@pytest.fixture(autouse=True, scope="module")
def _endless_turns() -> Iterator[None]:
    """Let no turn end by time: the compared programs would stop at different requests."""
    with pytest.MonkeyPatch.context() as patch, endless_turns():
        patch.setattr(store_reads, "TURN_S_MAX", math.inf)
        yield


@pytest.fixture
def whole_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete each search in the turn in which it begins, because handlers and the lane would
    postpone different ones.
    """
    monkeypatch.setattr(pull_lane, "TURN_STEPS_MAX", 1 << 50)
    monkeypatch.setattr(store_reads, "TURN_READS_MAX", 1 << 30)
    monkeypatch.setattr(store_reads, "TURN_BYTES_MAX", 1 << 40)
    monkeypatch.setattr(store_reads, "SEARCH_S_MAX", 1e9)
    for expression in EXPRESSIONS:  # cached: one broker finds what the other has compiled
        compile_sql(expression)
