# SPDX-License-Identifier: Apache-2.0
"""`cometmq k8s` as a process, with a fake kubectl that acts as API server and operator."""

import json
import os
import subprocess
import sys

import pytest

from cometmq.peers.comet import PROGRAM

from .conftest import COMMAND_TIMEOUT_S, Result

KUBECTL = """\
#!{python}
import json, sys
from pathlib import Path

state = Path({state!r})
words = sys.argv[1:]
(state / "calls").open("a").write(json.dumps(words) + "\\n")
group = json.loads((state / "group").read_text())
if "missing" in words:
    sys.exit('Error from server (NotFound): brokergroups.cometmq.io "missing" not found')
if "annotate" in words and "=" in words[-1]:
    verb, value = words[-1].removeprefix("cometmq.io/").split("=")
    answer = json.loads((state / "operator").read_text())
    if answer is not None:
        operation = {{"verb": verb, "value": value, "time": "now", **answer["operation"]}}
        group["status"].update(answer["status"], lastOperation=operation)
        if answer["end"]:
            group["end"] = {{"lastOperation": {{**operation, **answer["end"]}}}}
        (state / "group").write_text(json.dumps(group))
elif (state / "printed").exists():
    print((state / "printed").read_text())
elif "get" in words:
    print(json.dumps(group))
    if "end" in group:  # the next call sees the end of the operation
        group["status"].update(group.pop("end"))
        (state / "group").write_text(json.dumps(group))
"""

BEFORE = {"master": "orders-0", "epoch": 4}
AFTER = {"master": "orders-1", "epoch": 5}
STARTED = {"result": "Started"}


class Kubectl:
    def __init__(self, folder):
        self.folder = folder
        path = folder / "bin" / "kubectl"
        path.parent.mkdir()
        path.write_text(KUBECTL.format(python=sys.executable, state=str(folder)))
        path.chmod(0o755)
        self.is_(**BEFORE)
        self.answers(STARTED, **AFTER)

    def is_(self, **status):
        (self.folder / "group").write_text(json.dumps({"status": status}))

    def answers(self, operation, end=None, **status):
        """Make the operator write this status when it gets an order, and the end of the operation
        later; None means that no operator runs.
        """
        order = {"operation": operation, "status": status, "end": end}
        answer = None if operation is None else order
        (self.folder / "operator").write_text(json.dumps(answer))

    @property
    def annotations(self):
        calls = map(json.loads, (self.folder / "calls").read_text().splitlines())
        return [words[-1] for words in calls if "annotate" in words]

    def run(self, *words):
        done = subprocess.run(
            [str(PROGRAM), "k8s", *words], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return Kubectl(tmp_path)


def test_a_switchover_ends_with_the_next_master(kubectl):
    found = kubectl.run("switchover", "orders", "--namespace", "mq", "--json")
    assert found.json == {"group": "orders", "master": "orders-1", "epoch": 5}
    assert kubectl.annotations == ["cometmq.io/switchover-to=auto"]
    first = json.loads((kubectl.folder / "calls").read_text().splitlines()[0])
    assert first[0] == "--namespace=mq"


def test_a_switchover_to_a_pod(kubectl):
    assert kubectl.run("switchover", "orders", "--to", "orders-1").status == 0
    assert kubectl.annotations == ["cometmq.io/switchover-to=orders-1"]


def test_a_repeated_order_waits_for_its_own_outcome(kubectl):
    last = {"verb": "fence", "value": "orders-0", "time": "earlier", **STARTED}
    kubectl.is_(**BEFORE, lastOperation=last)
    kubectl.answers({"result": "Refused", "message": "orders-0 is slave, not the master"})
    found = kubectl.run("fence", "orders", "orders-0", "--yes")
    found.assert_refused(1, "orders-0 is slave, not the master")


@pytest.mark.parametrize("answer", ["", "[]", '{"status":7}', "Warning: x\n{}", "[" * 9_000])
def test_a_kubectl_that_prints_no_group_is_told(kubectl, answer):
    (kubectl.folder / "printed").write_text(answer)
    found = kubectl.run("switchover", "orders")
    found.assert_refused(1, "kubectl get printed no BrokerGroup: ")


def test_a_fence_waits_for_another_master(kubectl):
    kubectl.answers(STARTED)
    found = kubectl.run("fence", "orders", "orders-0", "--yes", "--wait", "1")
    found.assert_refused(1, "the operator began, but no other master was open after 1 s")
    kubectl.answers(STARTED, **AFTER, phase="Degraded")
    kubectl.is_(**BEFORE)
    assert kubectl.run("fence", "orders", "orders-0", "--yes", "--json").json["epoch"] == 5


def test_a_rebuild_starts(kubectl):
    kubectl.answers(STARTED)
    found = kubectl.run("rebuild", "orders", "orders-2", "--yes", "--json")
    assert found.json == {"group": "orders", "pod": "orders-2", "rebuild": "started"}
    assert kubectl.annotations == ["cometmq.io/rebuild=orders-2"]


BLOCKED = {
    "epoch": 4, "lossEpoch": 4,
    "conditions": [
        {"type": "ElectionPossible", "status": "False", "reason": "NoCandidate", "message": "none"}
    ],
}  # fmt: skip


def test_an_accepted_loss_names_its_epoch_and_ends_with_the_next_master(kubectl):
    kubectl.is_(**BLOCKED)
    kubectl.answers(STARTED, {"result": "Done"}, **AFTER)
    found = kubectl.run("accept-loss", "orders", "--yes", "--json")
    assert found.json == {"group": "orders", "master": "orders-1", "epoch": 5}
    assert kubectl.annotations == ["cometmq.io/accept-loss=4"]


@pytest.mark.parametrize("result", ["Started", "Done", "Refused"])
def test_an_accepted_loss_that_fails_says_why(kubectl, result):
    """The operator refuses it at once, or after a while, or no master opens."""
    kubectl.is_(**BLOCKED)
    if result == "Refused":
        kubectl.answers({"result": "Refused", "message": "orders-2 must answer first"})
        wanted = "orders-2 must answer first"
    elif result == "Started":
        kubectl.answers(STARTED, {"result": "Refused", "message": "no record was created in time"})
        wanted = "no record was created in time"
    else:
        kubectl.answers({"result": "Done"})
        wanted = "the operator began, but no other master was open after 1 s"
    found = kubectl.run("accept-loss", "orders", "--yes", "--wait", "1")
    found.assert_refused(1, wanted)


def test_a_loss_that_cannot_be_accepted_is_not_ordered(kubectl):
    found = kubectl.run("accept-loss", "orders", "--yes")
    found.assert_refused(1, "group orders has no loss that can be accepted now: nothing prevents")
    kubectl.is_(**{**BLOCKED, "lossEpoch": 0})
    found = kubectl.run("accept-loss", "orders", "--yes")
    found.assert_refused(1, "group orders has no loss that can be accepted now: NoCandidate: none")
    assert kubectl.annotations == []


def test_an_accepted_loss_asks_first_and_repeats_the_reason(kubectl):
    kubectl.is_(**BLOCKED)
    found = kubectl.run("accept-loss", "orders")
    assert found.status == 2
    assert "NoCandidate: none" in found.err
    assert "give --yes" in found.err
    assert kubectl.annotations == []


@pytest.mark.parametrize("verb", ["fence", "rebuild"])
def test_harmful_orders_ask_first(kubectl, verb):
    found = kubectl.run(verb, "orders", "orders-0")
    assert found.status == 2
    assert "give --yes" in found.err
    assert kubectl.annotations == []


def test_an_order_without_an_operator_is_withdrawn(kubectl):
    kubectl.answers(None)
    found = kubectl.run("rebuild", "orders", "orders-2", "--yes", "--wait", "1")
    found.assert_refused(1, "no operator carried out the order within 1 s, so it was withdrawn")
    assert kubectl.annotations == ["cometmq.io/rebuild=orders-2", "cometmq.io/rebuild-"]


def test_a_group_that_does_not_exist(kubectl):
    found = kubectl.run("switchover", "missing")
    found.assert_refused(1, "kubectl get: Error from server (NotFound)")


def test_without_kubectl(kubectl, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = kubectl.run("switchover", "orders")
    found.assert_refused(1, "kubectl is not on PATH: install it")


@pytest.mark.parametrize(
    "words",
    [("switchover", "orders"), ("fence", "orders", "orders-0"), ("rebuild", "orders", "orders-1")],
)
def test_a_dry_run_asks_the_api_server_and_gives_no_order(kubectl, words):
    found = kubectl.run(*words, "--dry-run", "--json").json
    assert (found["changed"], found["master"], found["at"]) == (False, "orders-0", ["orders"])
    calls = map(json.loads, (kubectl.folder / "calls").read_text().splitlines())
    assert all("--dry-run=server" in words for words in calls if "annotate" in words)
    assert kubectl.annotations


def test_a_dry_run_without_a_loss_to_accept_is_refused(kubectl):
    found = kubectl.run("accept-loss", "orders", "--dry-run")
    found.assert_refused(1, "group orders has no loss that can be accepted now")
