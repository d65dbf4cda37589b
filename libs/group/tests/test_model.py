# SPDX-License-Identifier: Apache-2.0
"""The short form of the exhaustive check; `make ha-model` is the long one."""

import msgspec
import pytest

from cometmq.ha import in_sync, member
from cometmq.ha.record import Record
from cometmq.testing.ha.check import CALM, SHORT, describe, is_bad, is_calm, walk
from cometmq.testing.ha.explore import explore
from cometmq.testing.ha.model import Model
from cometmq.testing.ha.world import Bounds


@pytest.mark.parametrize("bounds", SHORT, ids=describe)
def test_every_interleaving_keeps_the_promises(bounds):
    report = explore(Model(bounds), states_max=50_000)
    assert report.is_complete
    assert not is_bad(report), report


@pytest.mark.parametrize("bounds", CALM, ids=describe)
def test_without_faults_every_state_leads_on(bounds):
    report = explore(Model(bounds), states_max=50_000, goal=is_calm)
    assert report.is_complete
    assert not is_bad(report), report


def test_a_group_that_cannot_go_on_is_found(monkeypatch):
    bounds = Bounds(in_sync=2, messages=1, epochs=2)
    first = Model(bounds).first()
    monkeypatch.setattr(Model, "first", lambda model: first)
    monkeypatch.setattr(member, "is_named", lambda one, record: False)
    report = explore(Model(bounds), states_max=50_000, goal=is_calm)
    assert report.stuck > 0


WINNER_DIES = Bounds(
    in_sync=2,
    messages=1,
    epochs=3,
    writes=2,
    host_crashes=1,
    script=("elector makes 1 master of 2", "host of 1 crashes at 0"),
)


def test_a_group_survives_a_winner_that_never_opens():
    report = explore(Model(WINNER_DIES), states_max=50_000, goal=is_calm)
    assert report.is_complete
    assert not is_bad(report), report


def test_r9_without_the_old_set_nobody_is_electable(monkeypatch):
    elected = Record.elected

    def elected_alone(record, winner, epoch, **options):
        after = elected(record, winner, epoch, **options)
        return msgspec.structs.replace(after, in_sync=(winner,))

    monkeypatch.setattr(Record, "elected", elected_alone)
    report = explore(Model(WINNER_DIES), states_max=50_000, goal=is_calm)
    assert report.stuck > 0


def test_random_walks_keep_the_promises():
    for seed in range(300):
        bounds, report = walk(seed)
        assert not is_bad(report), f"seed {seed}: {describe(bounds)}\n{report}"


def test_a_random_walk_finds_a_dropped_rule(monkeypatch):
    monkeypatch.setattr(in_sync, "JOIN_CONDITIONS", ())
    assert any(is_bad(walk(seed)[1]) for seed in range(300))
