# SPDX-License-Identifier: Apache-2.0
"""Elector settings: the group they describe, and the error messages for invalid ones."""

import pytest

from cometmq.elector.plan import plan_of, timing_of
from cometmq.elector.settings import ElectorSettings
from cometmq.remoting.errors import SettingsError

GIVEN = {"broker_name": "orders", "control_members": "0=a:1;1=[::1]:2; 2=c:3"}


def plan(**changes):
    return plan_of(ElectorSettings(**{**GIVEN, **changes}))


def test_a_plan_has_all_members_with_their_addresses():
    found = plan(min_in_sync=2)
    assert found.addresses == {0: "a:1", 1: "[::1]:2", 2: "c:3"}
    assert found.group == found.whole
    assert (found.group.name, found.group.ordinals) == ("orders", (0, 1, 2))
    assert found.group.min_in_sync == 2


def test_leaving_members_do_not_count_but_are_asked():
    found = plan(leaving_members="2")
    assert found.group.ordinals == (0, 1)
    assert found.whole.ordinals == (0, 1, 2)
    assert found.leaving == {2}
    assert 2 in found.addresses


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"broker_name": ""}, "brokerName must be set"),
        ({"control_members": ""}, "controlMembers must be set"),
        ({"control_members": "a:1"}, "'a:1' is not brokerId=HOST:CONTROLPORT, for example 0="),
        ({"control_members": "0=a"}, "'0=a' is not brokerId=HOST:CONTROLPORT"),
        ({"control_members": "0=a:1;0=b:1"}, "names broker 0 twice"),
        ({"leaving_members": "x"}, "'x' is not a broker id"),
        ({"leaving_members": "4"}, r"leavingMembers names brokers \[4\], which are not in"),
        ({"leaving_members": "0;1;2"}, "one must stay"),
        ({"min_in_sync": 4}, "minInSync is 4, but group 'orders' has 3 copies"),
    ],
)
def test_contradictions_are_refused(changes, words):
    with pytest.raises(SettingsError, match=words):
        plan(**changes)


def test_the_elector_waits_longer_than_a_master_may_go_on():
    for deadline_ms in (500, 6_000, 600_000):
        timing = timing_of(ElectorSettings(renew_deadline_mills=deadline_ms))
        assert timing.lease_duration_ms >= 1.3 * deadline_ms
