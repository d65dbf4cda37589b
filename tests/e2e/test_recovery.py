# SPDX-License-Identifier: Apache-2.0
"""A group returns from its volumes, and from a copy of one; see docs/guides/disaster-recovery.md.

Each scenario leaves the group as it found it: ready, and with all messages consumed.
"""

import subprocess
import time

import pytest
import yaml

from cometmq.peers.backups import archive_script
from cometmq.peers.e2e import load as loads
from cometmq.peers.e2e.kubectl import until
from cometmq.peers.ha.load import CONSUMERS, TOPIC
from cometmq.peers.paths import ROOT

GROUP = "orders"
CLAIMS = f"cometmq.io/broker-group={GROUP}"
TIMEOUT_S = 300
COUNT = 25
STORE = "/var/lib/cometmq"
STATUS_AFTER_COPY = 4
"""`cometmq store verify`: the next start repairs the copy of a running broker."""


def produce(world):
    """Send messages that no consumer reads yet."""
    words = ("exec", loads.POD, "--", "cometmq", "produce", TOPIC, "1", "-n", world.namesrv)
    world.mq.kubectl(*words, "--count", str(COUNT))


def consume(world):
    """Consume the messages of `produce` with the group that has consumed all others."""
    world.until_registered()
    output = world.mq.kubectl(
        "exec", loads.POD, "--", "cometmq", "consume", TOPIC, "--group", CONSUMERS,
        "--max", str(COUNT), "--timeout", "120", "-n", world.namesrv,
    )  # fmt: skip
    assert output.split() == ["1"] * COUNT


def claims(world):
    """Return the volume claims of the group by name."""
    return {one["metadata"]["name"]: one for one in world.mq.list("pvc", CLAIMS)}


def keep_volumes_of_deleted_group(world):
    """Delete the group, and while it waits for consumers, have its volumes kept."""
    world.mq.kubectl("delete", "bg", GROUP, "--wait=false")
    until(lambda: world.status().get("phase") == "Draining", TIMEOUT_S, "the group drains")
    world.patch({"storage": {"retain": {"whenDeleted": "Retain"}}})
    until(
        lambda: not any(one["metadata"].get("ownerReferences") for one in claims(world).values()),
        TIMEOUT_S, "no claim has an owner",
    )  # fmt: skip
    finish_deletion(world)
    assert sorted(claims(world)) == [f"store-{GROUP}-{one}" for one in range(3)]


def finish_deletion(world):
    """Skip the wait for consumers, and wait until pods and record are gone."""
    world.mq.annotate(f"bg/{GROUP}", "cometmq.io/skip-drain", "true")
    until(lambda: world.group() is None, TIMEOUT_S, "the group is gone")
    until(lambda: not world.pods(), TIMEOUT_S, "its pods are gone")
    assert world.mq.get("lease", GROUP) is None


@pytest.fixture
def unread(ready):
    """The world with a group that has messages which nobody has consumed."""
    produce(ready)
    return ready


def test_a_deleted_group_is_created_again_with_its_volumes(unread, report):
    """It continues in a later epoch, with all messages and offsets."""
    epoch, started = unread.status()["epoch"], time.monotonic()
    keep_volumes_of_deleted_group(unread)
    unread.create_group()
    seconds = time.monotonic() - started
    assert unread.status()["epoch"] > epoch
    consume(unread)
    report.add("group deleted and created again", "until it is ready", seconds, unit="s")


def test_a_group_is_restored_from_a_copy_of_one_pod(unread, report, tmp_path):
    """All volumes and the record are lost; the copy of a slave has all messages and offsets."""
    status = unread.status()
    slave = next(pod for pod in status["inSync"] if pod != status["master"])
    archive = tmp_path / "orders.tar"
    copy_files(unread, slave, archive)
    started = time.monotonic()
    unread.mq.kubectl("delete", "bg", GROUP, "--wait=false")
    finish_deletion(unread)
    until(lambda: not claims(unread), TIMEOUT_S, "its volumes are gone")
    fill_first_volume(unread, archive)
    unread.create_group()
    seconds = time.monotonic() - started
    consume(unread)
    report.add("group restored from a backup", "until it is ready", seconds, unit="s")


def copy_files(world, pod, archive):
    """Run the guide's script; a file may be deleted or replaced meanwhile, so it may take several
    attempts.
    """
    text = archive_script(pod, archive).replace("kubectl", f"kubectl --namespace {world.mq.name}")

    def is_done():
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
        return done.returncode == 0 and "tar:" not in done.stderr

    until(is_done, TIMEOUT_S, "the files are copied")


def fill_first_volume(world, archive):
    """Create the claim and the pod of the example, and unpack the copy."""
    claim, pod = yaml.safe_load_all((ROOT / "deploy/examples/restore.yaml").read_text())
    claim["spec"]["resources"]["requests"]["storage"] = "1Gi"
    pod["spec"]["containers"][0]["image"] = world.image
    world.mq.apply(claim, pod)
    name = pod["metadata"]["name"]
    world.mq.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
    command = ["kubectl", "--namespace", world.mq.name, "exec", "--stdin", name, "--"]
    with archive.open("rb") as data:
        subprocess.run([*command, "tar", "-xf", "-", "-C", STORE], stdin=data, check=True)
    verify = ("exec", name, "--", "sh", "-c", f"cometmq store verify {STORE}; echo status $?")
    assert world.mq.kubectl(*verify).endswith(f"status {STATUS_AFTER_COPY}\n")
    world.mq.kubectl("delete", "pod", name)


def test_a_lost_volume_without_a_record_needs_a_person(unread):
    """The lost copy may be the only one with the newest messages, so the operator waits.

    The guide's annotation accepts the loss; here, another copy has everything.
    """
    keep_volumes_of_deleted_group(unread)
    unread.mq.kubectl("delete", "pvc", f"store-{GROUP}-0")
    unread.apply_group(GROUP, replicas=3, replication={"minInSync": 2})
    until(
        lambda: unread.condition(GROUP, "ElectionPossible").get("reason") == "CopyLeftOut",
        TIMEOUT_S, "the operator waits for a person",
    )  # fmt: skip
    epoch = until(lambda: unread.status().get("lossEpoch"), TIMEOUT_S, "the loss has an epoch")
    accept_loss(unread, epoch + 1)
    refused = until(lambda: ended(unread), TIMEOUT_S, "another loss is refused")
    assert refused["result"] == "Refused"
    assert f"cometmq.io/accept-loss={epoch}" in refused["message"]
    accept_loss(unread, epoch)
    unread.until_ready()
    assert ended(unread)["result"] == "Done"
    assert unread.status()["epoch"] > epoch
    consume(unread)


def accept_loss(world, epoch):
    world.mq.annotate(f"bg/{GROUP}", "cometmq.io/accept-loss", str(epoch))


def ended(world):
    """Return the last operation if it is an accepted loss that is done or refused."""
    found = world.status().get("lastOperation", {})
    is_it = found.get("verb") == "accept-loss" and found["result"] != "Started"
    return found if is_it else None
