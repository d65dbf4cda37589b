# SPDX-License-Identifier: Apache-2.0
"""The operator ends up right, and does nothing twice: outages, bursts, thefts, failures of kopf."""

import asyncio
import json
import sys
import urllib.error
import urllib.request

import kopf

from cometmq.operator.api import KubeApi
from cometmq.peers.paths import ROOT
from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child


def is_acting(app, wanted=True):
    async def check():
        return app.acting.is_set() is wanted

    return check


async def switched_once(world, status):
    """Order a switchover; check that it happens, and that it is carried out once."""
    other = "orders-1" if status["master"] == "orders-0" else "orders-0"
    await world.kubectl("annotate", "bg", "orders", f"cometmq.io/switchover-to={other}")
    await world.until_status(master=other)
    events = await world.events()
    assert [text for reason, text in events if reason == "OperationStarted"] == [
        f"switchover-to {other}: started"
    ]


async def answer_of(port):
    """Return what the liveness endpoint answers; None if nothing listens."""

    def ask():
        with urllib.request.urlopen(f"http://{HOST}:{port}/healthz", timeout=10) as answer:
            return answer.read().decode()

    try:
        return await asyncio.to_thread(ask)
    except (urllib.error.URLError, OSError):
        return None


async def test_an_outage_of_the_api_server_that_outlasts_the_lease(world):
    """After the outage, watches of old versions are answered with 410 Gone."""
    async with world.operated() as app:
        status = await world.start_group()
        await asyncio.to_thread(world.kube.stop_api_server)
        try:
            await world.until(is_acting(app, False), "the operator stops acting")
        finally:
            await asyncio.to_thread(world.kube.start_api_server)
        await world.until(is_acting(app), "the operator acts again")
        await world.until_status(phase="Running", inSyncCount=2)
        patch = json.dumps({"data": {"broker.conf": "brokerName=other\n"}})
        await world.kubectl("patch", "configmap", "orders-config", "--type=merge", "-p", patch)

        async def is_repaired():
            config = await world.get("configmap", "orders-config")
            return "brokerName=orders\n" in config["data"]["broker.conf"]

        await world.until(is_repaired, "a change by hand is repaired")
        await switched_once(world, {**status, **await world.status()})


async def test_a_definition_that_is_deleted_and_made_again(world):
    crds = str(ROOT / "deploy/crds")
    async with world.operated():
        await world.apply()
        await world.until_pods(2)
        await world.kubectl("delete", "-f", f"{crds}/brokergroups.yaml")
        await world.kubectl("apply", "-f", crds)
        await world.kubectl("wait", "--for=condition=Established", "crd", "--all")
        await world.apply(replicas=3)
        await world.until_pods(3)


async def test_a_burst_of_events_of_one_object_causes_few_passes(world):
    async with world.operated() as app:
        status = await world.start_group()
        passes, loop = dict(app.figures().passes), asyncio.get_running_loop()
        started_s = loop.time()
        async with KubeApi(world.server) as api:
            for number in range(200):
                patch = {"metadata": {"annotations": {"example.com/note": str(number)}}}
                await api.patch("BrokerGroup", world.namespace, "orders", patch)
        took_s = loop.time() - started_s
        done = app.figures().passes["done"] - passes["done"]
        assert done <= 5 * took_s + 2
        assert app.figures().passes["failed"] == passes["failed"]
        await switched_once(world, status)


async def test_a_lease_that_is_stolen(world):
    async with world.operated() as app:
        status = await world.start_group()
        spec = {"holderIdentity": "thief"}
        patch = json.dumps({"spec": spec})
        await world.kubectl("patch", "lease", "cometmq-operator", "--type=merge", "-p", patch)
        await world.until(is_acting(app, False), "the operator stops acting")
        assert (await world.get("lease", "cometmq-operator"))["spec"]["holderIdentity"] == "thief"
        await world.until(is_acting(app), "the thief does not renew it")
        await switched_once(world, status)


async def test_kopf_that_ends_begins_again_while_electors_go_on(world, monkeypatch):
    """An error in a watch that kopf does not know ends it."""
    run, ends = kopf.operator, asyncio.Event()
    loop = asyncio.get_running_loop()

    async def ending(**given):
        if not ends.is_set():
            loop.call_soon_threadsafe(ends.set)
            async with asyncio.timeout(15):
                await run(**given)
        await run(**given)

    monkeypatch.setattr(kopf, "operator", ending)
    async with world.operated() as app:
        status = await world.start_group()
        (before,) = app.figures().groups

        async def has_ended():
            return "kopf.ended" in [event.name for event in world.log.events]

        await world.until(has_ended, "kopf has ended")
        await switched_once(world, status)
        (after,) = app.figures().groups
        assert after.elector is before.elector


async def test_kopfs_liveness_endpoint_answers_on_a_standby_too(world):
    port, other = free_port(), free_port()
    async with world.operated("one", port) as app:
        await world.until(is_acting(app), "the first operator acts")
        await world.apply()

        async def counts():
            return json.loads(await answer_of(port) or "{}").get("groups") == 1

        await world.until(counts, "kopf asks the loop of the passes")
        async with world.operated("two", other):
            await world.until(lambda: answer_of(other), "a standby answers")


def running(world, folder, port):
    """Start kopf with the module `admission` as in a pod; here, the API server is elsewhere."""
    server = world.server
    module = folder / "module.py"
    module.write_text(
        "from pathlib import Path\n"
        "from cometmq.operator import acting, admission\n"
        "from cometmq.operator.api import ApiServer\n"
        f"acting.in_cluster = lambda: ApiServer(host={server.host!r}, port={server.port},"
        f" ca=Path({str(server.ca)!r}), token=Path({str(server.token)!r}))\n"
    )
    command = [
        sys.executable, "-m", "kopf", "run", str(module), "--standalone", "--quiet",
        f"--namespace={world.namespace}", f"--liveness=http://{HOST}:{port}/healthz",
    ]  # fmt: skip
    env = {
        "COMETMQ_OPERATOR_NAMESPACE": world.namespace, "POD_ID": "one",
        "COMETMQ_OPERATOR_DEFAULT_IMAGE": "cometmq:test",
        "COMETMQ_OPERATOR_WEBHOOK_ADDRESS": HOST, "COMETMQ_OPERATOR_WEBHOOK_PORT": str(free_port()),
    }  # fmt: skip
    return Child("kopf", command, log_path=folder / "kopf.log", env=env)


async def test_kopf_can_run_the_modules_and_refuses_what_another_object_has(world, tmp_path):
    port = free_port()
    child = running(world, tmp_path, port)
    try:
        await world.apply()
        await world.until_pods(2)
        assert json.loads(await answer_of(port) or "{}")["groups"] == 1
        copy = await world.get("bg", "orders")
        body = {key: copy[key] for key in ("apiVersion", "kind", "spec")}
        body |= {"metadata": {"name": "copy"}, "spec": {**copy["spec"], "brokerName": "orders"}}
        call = ("apply", "--dry-run=server", "-f", "-")

        async def is_refused():
            return "brokerName orders is that of the BrokerGroup" in await world.kubectl(
                *call, stdin=json.dumps(body), is_checked=False
            )

        await world.until(is_refused, "kopf has registered its webhooks")
        body["spec"]["brokerName"] = "others"
        await world.kubectl(*call, stdin=json.dumps(body))
        spec = {"nameServers": [f"{HOST}:1"], "name": "paid"}
        topic = {**body, "kind": "Topic", "metadata": {"name": "one"}, "spec": spec}
        await world.kubectl("apply", "-f", "-", stdin=json.dumps(topic))
        topic["metadata"] = {"name": "two"}

        async def is_known():
            text = await world.kubectl(*call, stdin=json.dumps(topic), is_checked=False)
            return "paid is declared by the Topic" in text

        await world.until(is_known, "a second object with the same topic is refused")
        assert await asyncio.to_thread(child.stop, 30) == 0
        lease = await world.get("lease", "cometmq-operator")
        assert "holderIdentity" not in lease["spec"]
        await world.kubectl(*call, stdin=json.dumps(topic))  # nobody serves the checks
    finally:
        child.kill()
