# SPDX-License-Identifier: Apache-2.0
"""The status that users read."""

import msgspec
import pytest

from cometmq.ha.actions import Status
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.operator.api_types.security_sections import SecretReason
from cometmq.operator.api_types.status import GroupStatus
from cometmq.operator.broker_groups.decide import Nothing, Reason, Restart, Wait
from cometmq.operator.broker_groups.live import REVISION, Live, seen_of
from cometmq.operator.broker_groups.seen import Backlog, Election, Seen
from cometmq.operator.broker_groups.status import Findings, status_of
from cometmq.testing.operator.states import DOWN, READY, STALE, deleting, group, seen

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def status(state, one=None, before=None, now=NOW, **more):
    found = Findings(seen=state, **more)
    return status_of(one or group(), found, before or GroupStatus(), now)


def conditions(found):
    return {one.type: (one.status, one.reason) for one in found.conditions}


def test_a_healthy_group():
    found = status(seen(READY, READY))
    assert (found.phase, found.master, found.epoch) == ("Running", "orders-0", 4)
    assert found.in_sync == ["orders-0", "orders-1"]
    assert (found.replicas, found.ready_replicas, found.in_sync_count) == (2, 2, 2)
    assert conditions(found) == {
        "Available": ("True", "MasterOpen"),
        "FullyReplicated": ("True", "InSync"),
        "Ready": ("True", "AsSpecified"),
        "Progressing": ("False", "Idle"),
        "ElectionPossible": ("True", "Watching"),
        "SpecAccepted": ("True", "Applied"),
    }


PHASES = {
    "Creating": (group(), Seen(), {}),
    "Running": (group(), seen(READY, READY), {}),
    "Degraded": (group(), seen(READY, DOWN, out=(1,)), {}),
    "Upgrading": (group(), seen(STALE, READY), {}),
    "Scaling": (group(replicas=3), seen(READY, READY), {}),
    "Draining": (deleting(group()), seen(READY, READY), {}),
    "Paused": (group(paused=True), seen(READY, READY), {}),
    "Failed": (group(), seen(READY, READY), {"refusal": "quota"}),
}


def test_a_secret_that_cannot_be_used_makes_a_running_group_unready():
    fault = Wait(SecretReason.INCOMPLETE, "the Secret mq/cert lacks ca.crt")
    found = status(seen(READY, READY), secret_fault=fault, step=fault)
    assert found.phase == "Failed"
    states = conditions(found)
    assert states["Available"] == ("True", "MasterOpen")
    for type_ in ("Ready", "SpecAccepted"):
        assert states[type_] == ("False", "SecretIncomplete")
    (text,) = (one.message for one in found.conditions if one.type == "Ready")
    assert text == fault.text


@pytest.mark.parametrize("phase", PHASES)
def test_phases(phase):
    one, state, more = PHASES[phase]
    assert status(state, one, **more).phase == phase


@pytest.mark.parametrize(
    ("state", "more", "type_", "wanted"),
    [
        (seen(READY, READY, statuses=()), {}, "Available", ("False", "NoMaster")),
        (seen(READY, READY, out=(1,)), {}, "FullyReplicated", ("False", "CopiesMissing")),
        (seen(READY, DOWN), {}, "Ready", ("False", "PodsNotReady")),
        (
            seen(READY, STALE), {"step": Restart(1)}, "Progressing", ("True", "RollingUpdate"),
        ),
        (
            seen(READY, STALE), {"step": Wait(Reason.ROLL_BLOCKED, "x")}, "Progressing",
            ("True", "RollBlocked"),
        ),
        (
            seen(READY, READY, election_fault=("NoCandidate", "x")), {}, "ElectionPossible",
            ("False", "NoCandidate"),
        ),
        (seen(READY, READY), {"refusal": "no"}, "SpecAccepted", ("False", "Refused")),
    ],
)  # fmt: skip
def test_conditions(state, more, type_, wanted):
    assert conditions(status(state, **more))[type_] == wanted


def test_too_few_copies_make_a_group_unavailable():
    one = group(replication={"minInSync": 2})
    found = status(seen(READY, READY, out=(1,)), one)
    assert conditions(found)["Available"] == ("False", "TooFewInSync")


def waiting(reason, message=""):
    return {"state": {"waiting": {"reason": reason, "message": message}}}


UNSCHEDULABLE = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes",
}  # fmt: skip


@pytest.mark.parametrize(
    ("pod_status", "text"),
    [
        ({"containerStatuses": [waiting("ContainerCreating")]}, ""),
        ({"containerStatuses": [waiting("CrashLoopBackOff")]}, "; orders-1: CrashLoopBackOff"),
        (
            {"containerStatuses": [waiting("ImagePullBackOff", "pulling x:1")]},
            "; orders-1: ImagePullBackOff: pulling x:1",
        ),
        ({"conditions": [UNSCHEDULABLE]}, "; orders-1: Unschedulable: 0/3 nodes"),
    ],
    ids=["starting", "crashing", "no image", "no node"],
)
def test_a_pod_that_cannot_run_is_explained(pod_status, text):
    one = group()
    stateful_set = {"metadata": {"generation": 1}, "spec": {"replicas": 2}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = {
        ordinal: {"metadata": {"labels": {REVISION: ""}}, "status": found}
        for ordinal, found in enumerate((ready, pod_status))
    }
    live = Live(stateful_set=stateful_set, pods=pods, claims=[])
    found = status(seen_of(one, live, Election(), GroupStatus()), one)
    (condition,) = (condition for condition in found.conditions if condition.type == "Ready")
    assert condition.message == f"not ready, or not current: orders-1{text}"


def test_the_time_of_a_condition_changes_with_its_status_only():
    first = status(seen(READY, READY), step=Nothing())
    second = status(seen(READY, STALE), before=first, now=LATER)
    times = {one.type: one.last_transition_time for one in second.conditions}
    assert times["Ready"] == LATER
    assert times["Available"] == NOW


def test_a_deletion_shows_what_it_waits_for():
    backlog = Backlog({"billing": 5, "mail": 9})
    found = status(seen(READY, READY, backlog=backlog), deleting(group()))
    assert found.drain
    assert found.drain.remaining_messages == 14
    assert found.drain.waiting_for == ["mail: 9", "billing: 5"]


def test_the_status_is_json_with_the_names_of_the_schema():
    found = msgspec.to_builtins(status(seen(READY, READY)))
    assert found["observedGeneration"] == 3
    assert found["members"][1] == {
        "pod": "orders-1", "role": "slave", "epoch": 4, "inSync": True, "ready": True,
        "current": True,
    }  # fmt: skip


CRASHED = tuple(
    Status(copy=Copy(one, "new"), role=Role.SLAVE, promised=4 + one) for one in range(2)
)
"""Both brokers answer with stores that the record does not name."""
LOST = seen(
    READY, READY, statuses=CRASHED, asked=(0, 1), election_fault=("NoCandidate", "no member")
)


def replaced(**facts):
    return msgspec.structs.replace(LOST, **facts)


RISK = "no member; if the recorded stores are lost, so may be acknowledged messages"
PERSON = "a person has to accept that"
HOW = "with cometmq k8s accept-loss orders or the annotation cometmq.io/accept-loss"
SILENT = (
    "orders-1 must answer first, because a broker that does not answer may have a complete store;"
    " if its volume is lost, let it start with an empty one"
)
SUSPECT = ("SuspectCopy", f"lost: {PERSON}")


@pytest.mark.parametrize(
    ("state", "epoch", "text"),
    [
        (LOST, 4, f"{RISK}: {PERSON}, {HOW}=4"),
        (replaced(record=None, election_fault=SUSPECT), 5, f"lost: {PERSON}, {HOW}=5"),
        (replaced(statuses=CRASHED[:1]), 0, f"{RISK}: {PERSON}, but not yet: {SILENT}"),
        (replaced(election_fault=("RecordUnreachable", "no API")), 0, "no API"),
    ],
    ids=["with a record", "without a record", "a silent broker", "another reason"],
)
def test_a_loss_that_can_be_accepted_is_explained(state, epoch, text):
    found = status(state)
    assert found.loss_epoch == epoch
    (condition,) = (one for one in found.conditions if one.type == "ElectionPossible")
    assert condition.message == text


def test_no_loss_is_accepted_in_a_group_that_is_deleted():
    assert status(LOST, deleting(group())).loss_epoch == 0
