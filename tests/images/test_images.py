# SPDX-License-Identifier: Apache-2.0
"""The suite's image is reproducible, lists its contents, and is safe with a read-only root."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from build_images import docker
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from cometmq.client import CometError, Message, Producer, SendStatus
from cometmq.peers.processes import wait_until

TOPIC = "ImageTest"
START_TIMEOUT_S = 60
GRACE_S = 30
SENDS_BEFORE_STOP = 500
HARDENED = (
    "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges",
    "--cpus=1", "--mount=type=volume,destination=/var/lib/cometmq",
)  # fmt: skip


@pytest.fixture
def start(image):
    """Start a program in a hardened container; return the container's name."""
    names: list[str] = []

    def started(name, memory, *words):
        command = ["run", "--detach", f"--memory={memory}", f"--memory-swap={memory}", *HARDENED]
        names.append(docker(*command, image, *words).strip())
        wait_until(
            lambda: f"{name}.ready" in logs(names[-1]),
            START_TIMEOUT_S,
            f"{name}: {logs(names[-1])}",
        )
        return names[-1]

    yield started
    if names:
        docker("rm", "--force", "--volumes", *names)


def logs(container):
    done = subprocess.run(
        ["docker", "logs", container], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def state(container):
    return json.loads(docker("inspect", "--format={{json .State}}", container))


def address(container):
    template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return docker("inspect", f"--format={template}", container).strip()


async def send_until_refused(producer, acknowledged, enough):
    """Send with 16 tasks until a send fails; return the bodies of the acknowledged messages."""

    async def sender(worker):
        number = 0
        while True:
            body = f"{worker}-{number}"
            number += 1
            try:
                result = await producer.send(Message(TOPIC, body.encode()))
            except CometError:
                return
            if result.status is SendStatus.SEND_OK:
                acknowledged.add(body)
            if len(acknowledged) >= SENDS_BEFORE_STOP:
                enough.set()

    async with asyncio.TaskGroup() as group:
        for worker in range(16):
            group.create_task(sender(worker))


def consumed(namesrv, count):
    command = [str(Path(sys.executable).with_name("cometmq")), "consume", TOPIC, "--from", "first"]
    done = subprocess.run(
        [*command, "--timeout", "10", "--max", str(count), "-n", namesrv],
        capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    return done.stdout.split()


def test_two_builds_have_one_digest(builds):
    first, second = builds
    assert first.digest == second.digest
    ids = {docker("image", "inspect", "--format={{.Id}}", one.tag).strip() for one in builds}
    assert ids == {first.digest}


def test_the_list_of_contents_is_valid_and_complete(builds, image):
    text = builds[0].contents.read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    urls = {one["purl"] for one in json.loads(text)["components"]}
    code = (
        "import importlib.metadata as m\n"
        "for one in m.distributions(): print(one.name.lower().replace('_', '-'), one.version)"
    )
    listed = docker("run", "--rm", "--entrypoint=python", image, "-c", code).splitlines()
    assert len(listed) > 20
    assert [one for one in listed if "pkg:pypi/{}@{}".format(*one.split()) not in urls] == []
    inside = docker("run", "--rm", "--entrypoint=cat", image, "/usr/share/cometmq/sbom.cdx.json")
    assert inside == text


def test_the_image_names_its_origin_and_no_user_of_rights(image):
    config = json.loads(docker("image", "inspect", image))[0]["Config"]
    assert config["User"] == "10001:10001"
    labels = config["Labels"]
    wanted = {"title", "description", "licenses", "version", "revision", "base.name"}
    assert {f"org.opencontainers.image.{one}" for one in wanted} <= set(labels)
    assert all(labels.values())


@pytest.mark.parametrize("program", ["namesrv", "broker", "elector", "txn-checker", "exporter"])
def test_every_program_is_in_the_image(image, program):
    text = docker(
        "run", "--rm", "--read-only", "--network=none", image, program, "--print-settings"
    )
    assert "adminHttpPort=" in text


async def test_a_stop_under_load_is_clean_and_loses_nothing(start):
    """The broker stops within the grace period and keeps all acknowledged messages."""
    names = start("namesrv", "128m", "namesrv")
    namesrv = f"{address(names)}:9876"
    broker = await asyncio.to_thread(start, "broker", "256m", "broker", "-n", namesrv)
    acknowledged: set[str] = set()
    enough = asyncio.Event()
    async with Producer("image-test", namesrv) as producer, asyncio.TaskGroup() as group:
        group.create_task(send_until_refused(producer, acknowledged, enough))
        async with asyncio.timeout(START_TIMEOUT_S):
            await enough.wait()
        await asyncio.to_thread(docker, "stop", f"--time={GRACE_S}", broker)
    after = state(broker)
    assert after["ExitCode"] == 0, logs(broker)
    assert not after["OOMKilled"]
    docker("start", broker)
    wait_until(lambda: logs(broker).count("broker.ready") == 2, START_TIMEOUT_S, "second start")
    found = consumed(namesrv, len(acknowledged))
    lost = acknowledged - set(found)
    if lost:  # messages without an acknowledgement may be among the first ones
        lost -= set(consumed(namesrv, len(acknowledged) + len(lost) + 16))
    assert lost == set()
    docker("stop", f"--time={GRACE_S}", broker, names)
    assert [state(one)["ExitCode"] for one in (broker, names)] == [0, 0]
