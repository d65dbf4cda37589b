# SPDX-License-Identifier: Apache-2.0
"""Runs the operator against a real API server, with StatefulSets but without nodes.

Brokers are real and run in this process. There is no kubelet, so the tests themselves mark the pods
of the brokers as ready.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.broker.registration.addresses import choose_ports
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.testing.clients import Client
from cometmq.broker.testing.groups import FAST, HOST, KillableApp
from cometmq.broker.testing.logs import RecordingLog
from cometmq.operator.api import Server
from cometmq.operator.app import OperatorApp, records_of
from cometmq.operator.members import Addresses
from cometmq.operator.settings import OperatorSettings
from cometmq.peers.ports import free_port
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import Loaded, load

DEADLINE_S = 90.0


class World:
    """One namespace with kubectl, an operator, and the brokers that its pods stand for."""

    def __init__(self, kube, namespace, folder):
        self.kube, self.namespace, self.folder = kube, namespace, folder
        self.server = Server(kube.url, lambda: kube.token)
        self.main = {one: choose_ports(0, HOST, ha_port=None).main for one in range(3)}
        self.control = {one: free_port() for one in range(9)}
        self.brokers: dict[int, KillableApp] = {}
        self.log = RecordingLog()

    async def kubectl(self, *arguments, **options):
        call = (*arguments, "-n", self.namespace)
        return await asyncio.to_thread(lambda: self.kube.kubectl(*call, **options))

    async def get(self, *arguments):
        return await asyncio.to_thread(lambda: self.kube.objects(*arguments, "-n", self.namespace))

    async def apply(self, **spec):
        body = {
            "apiVersion": "cometmq.io/v1alpha1",
            "kind": "BrokerGroup",
            "metadata": {"name": "orders"},
            "spec": {
                "nameServers": [f"{HOST}:1"],
                "replication": {"renewDeadlineMs": 2000, "heardWithinMs": 300},
                **spec,
            },
        }
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def operator(self, identity="one"):
        settings = OperatorSettings(
            namespace=self.namespace, watch_namespaces=self.namespace, identity=identity,
            default_image="cometmq:test", drain_quiet_mills=1_000,
        )  # fmt: skip
        addresses = Addresses(
            control=lambda _group, one: f"{HOST}:{self.control[one]}",
            main=lambda _group, one: f"{HOST}:{self.main[one]}",
        )
        return OperatorApp(
            Loaded(settings, {}, {}), log=self.log, clock=SystemClock(), server=self.server,
            addresses=addresses,
        )  # fmt: skip

    async def start_broker(self, ordinal, **settings):
        given = {
            **FAST,
            "brokerName": "orders",
            "brokerId": str(ordinal),
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": str(self.main[ordinal]),
            "controlPort": str(self.control[ordinal]),
            "storePathRootDir": str(self.folder / str(ordinal)),
            "groupRecord": "file:/not-used",
            "groupMembers": ";".join(f"{one}={HOST}:{port}" for one, port in self.main.items()),
            **settings,
        }
        app = KillableApp(
            load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given),
            log=RecordingLog(),
            clock=SystemClock(),
            record=records_of(self.server)(self.namespace, "orders"),
        )
        await app.start()
        self.brokers[ordinal] = app

    async def pods(self):
        found = await self.get("pods", "-l", "cometmq.io/broker-group=orders")
        return {one["metadata"]["name"]: one for one in found["items"]}

    async def set_ready(self, *ordinals):
        """Mark pods as ready, as a kubelet would."""
        status = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
        for ordinal in ordinals:
            await self.kubectl(
                "patch", "pod", f"orders-{ordinal}", "--subresource=status", "--type=merge",
                "-p", json.dumps({"status": status}),
            )  # fmt: skip

    async def status(self):
        return (await self.get("bg", "orders")).get("status", {})

    async def condition(self, type_):
        found = (await self.status()).get("conditions", ())
        return next(((one["status"], one["reason"]) for one in found if one["type"] == type_), None)

    async def events(self):
        found = await self.get("events")
        return [(one["reason"], one["message"]) for one in found["items"]]

    async def until(self, check: Callable[[], Any], what: str):
        """Wait until an asynchronous check returns a true value; return it."""
        end, last = time.monotonic() + DEADLINE_S, None
        while time.monotonic() < end:
            last = await check()
            if last:
                return last
            await asyncio.sleep(0.2)
        raise AssertionError(f"not within {DEADLINE_S} s: {what}; log {self.log.events[-20:]}")

    async def until_status(self, **wanted):
        async def check():
            status = await self.status()
            return (
                status if all(status.get(key) == value for key, value in wanted.items()) else None
            )

        return await self.until(check, f"status {wanted}")

    async def until_pods(self, count):
        async def check():
            found = await self.pods()
            return found if len(found) == count else None

        return await self.until(check, f"{count} pods")

    async def stop_brokers(self):
        for ordinal in tuple(self.brokers):
            await self.brokers.pop(ordinal).stop()

    async def close(self):
        patch = json.dumps({"metadata": {"finalizers": None}})
        arguments = ("patch", "bg", "orders", "--type=merge", "-p", patch)
        await self.kubectl(*arguments, is_checked=False)


@pytest.fixture
async def world(kube, namespace, tmp_path):
    one = World(kube, namespace, tmp_path)
    yield one
    await one.close()


@asynccontextmanager
async def running(world, identity="one"):
    app = world.operator(identity)
    await app.start()
    try:
        yield app
    finally:
        await world.stop_brokers()  # brokers must stop in the task that started them
        await app.stop()


def acting(app):
    async def check():
        return app.acting.is_set()

    return check


def gone(world):
    async def check():
        return not (await world.get("bg"))["items"]

    return check


async def start_group(world, count=2, **spec):
    await world.apply(replicas=count, **spec)
    for ordinal in range(count):
        await world.start_broker(ordinal)
    await world.until_pods(count)
    await world.set_ready(*range(count))
    return await world.until_status(phase="Running", inSyncCount=count)


async def test_a_group_is_created_and_explains_itself(world):
    async with running(world):
        await world.apply()
        pods = await world.until_pods(2)
        found = await world.get(
            "sa,role,rolebinding,configmap,service,networkpolicy,pdb,statefulset",
            "-l", "cometmq.io/broker-group=orders",
        )  # fmt: skip
        names = sorted((one["kind"], one["metadata"]["name"]) for one in found["items"])
        assert names == [
            ("ConfigMap", "orders-config"),
            ("NetworkPolicy", "orders"),
            ("PodDisruptionBudget", "orders"),
            ("Role", "orders-broker"),
            ("RoleBinding", "orders-broker"),
            ("Service", "orders-peers"),
            ("ServiceAccount", "orders-broker"),
            ("StatefulSet", "orders"),
        ]
        labels = pods["orders-1"]["metadata"]["labels"]
        assert labels["apps.kubernetes.io/pod-index"] == "1"
        status = await world.until_status(phase="Creating", replicas=2)
        assert status["selector"].startswith("app.kubernetes.io/name=cometmq-broker")

        async def blocked():
            return await world.condition("ElectionPossible") == ("False", "MembersMissing")

        await world.until(blocked, "the condition names what an election waits for")


async def test_a_lost_master_is_replaced_although_its_pod_is_ready(world):
    async with running(world):
        status = await start_group(world)
        master = int(status["master"].removeprefix("orders-"))
        lease = await world.get("lease", "orders")
        assert lease["spec"]["holderIdentity"] == status["master"]
        await world.brokers.pop(master).kill()
        other = f"orders-{1 - master}"
        after = await world.until_status(master=other)
        assert after["epoch"] > status["epoch"]
        await world.start_broker(master)
        await world.until_status(phase="Running", inSyncCount=2, master=other)
        text = f"{other} is the master of epoch {after['epoch']}"
        assert ("MasterChanged", text) in await world.events()
        pods = await world.pods()
        assert pods[other]["metadata"]["labels"]["cometmq.io/role"] == "master"


async def test_a_switchover_by_annotation_runs_once(world):
    async with running(world):
        status = await start_group(world)
        other = "orders-1" if status["master"] == "orders-0" else "orders-0"
        await world.kubectl("annotate", "bg", "orders", f"cometmq.io/switchover-to={other}")
        await world.until_status(master=other)
        group = await world.get("bg", "orders")
        assert "cometmq.io/switchover-to" not in group["metadata"].get("annotations", {})
        await world.kubectl("annotate", "bg", "orders", "cometmq.io/switchover-to=billing-0")

        async def refused():
            operation = (await world.status()).get("lastOperation", {})
            return "not a pod of the group" in operation.get("message", "")

        await world.until(refused, "a wrong target is refused with a reason")


async def test_an_order_given_without_an_operator_is_carried_out_by_the_next(world):
    """The operator's first pass over the group runs before its elector has read the record."""
    async with running(world, "one") as first:
        status = await start_group(world)
        other = "orders-1" if status["master"] == "orders-0" else "orders-0"
        await first.stop()
        await world.kubectl("annotate", "bg", "orders", f"cometmq.io/switchover-to={other}")
        async with running(world, "two"):
            await world.until_status(master=other)
            operation = (await world.status())["lastOperation"]
            assert (operation["verb"], operation["result"]) == ("switchover-to", "Started")


async def test_a_fenced_master_is_followed_by_a_master_of_a_later_epoch(world):
    """Repeats the order until a later epoch has a master.

    On a busy machine, the order may arrive while the master is not responding, or the same broker
    may be elected again.
    """
    async with running(world) as app:
        before = await start_group(world)

        async def is_replaced():
            group = await world.get("bg", "orders")
            status = group["status"]
            if status.get("master") and status["epoch"] > before["epoch"]:
                return True
            is_pending = "cometmq.io/fence" in group["metadata"].get("annotations", {})
            if not is_pending and status.get("lastOperation", {}).get("result") != "Started":
                annotation = f"cometmq.io/fence={before['master']}"
                await world.kubectl("annotate", "bg", "orders", annotation)
            return False

        await world.until(is_replaced, "a later epoch has a master")
        await world.until_status(phase="Running", inSyncCount=2)
        (figures,) = app.figures().groups
        assert figures.operations["fence", "Started"] >= 1


async def test_an_order_that_would_do_harm_is_refused(world):
    async with running(world):
        status = await start_group(world)
        await world.kubectl("annotate", "bg", "orders", f"cometmq.io/rebuild={status['master']}")

        async def refused():
            operation = (await world.status()).get("lastOperation", {})
            return operation.get("verb") == "rebuild" and operation["result"] == "Refused"

        await world.until(refused, "the master is not rebuilt")
        assert (await world.status())["lastOperation"]["message"]


async def test_a_group_continues_after_a_power_failure_once_a_person_accepts_the_loss(
    world, monkeypatch, tmp_path
):
    rebooted = tmp_path / "boot_id"
    rebooted.write_text("after the power failure")
    async with running(world):
        before = await start_group(world)
        for broker in world.brokers.values():
            await broker.kill()
        world.brokers.clear()
        monkeypatch.setattr("cometmq.runtime.boot._BOOT_ID", rebooted)
        for ordinal in range(2):
            await world.start_broker(ordinal)

        async def acceptable():
            return (await world.status()).get("lossEpoch")

        epoch = await world.until(acceptable, "the loss can be accepted")
        assert epoch >= before["epoch"]
        assert await world.condition("ElectionPossible") == ("False", "NoCandidate")
        await world.kubectl("annotate", "bg", "orders", "cometmq.io/accept-loss=0")

        async def refused():
            operation = (await world.status()).get("lastOperation", {})
            return operation.get("result") == "Refused" and operation["message"]

        message = await world.until(refused, "another loss is not accepted")
        assert f"cometmq.io/accept-loss={epoch}" in message
        assert (await world.get("lease", "orders"))["spec"]["leaseTransitions"] == epoch
        await world.kubectl("annotate", "bg", "orders", f"cometmq.io/accept-loss={epoch}")
        after = await world.until_status(phase="Running", inSyncCount=2)
        assert after["epoch"] > epoch
        operation = after["lastOperation"]
        assert (operation["verb"], operation["result"]) == ("accept-loss", "Done")
        reasons = [reason for reason, _ in await world.events()]
        assert "OperationDone" in reasons
        group = await world.get("bg", "orders")
        assert "cometmq.io/accept-loss" not in group["metadata"].get("annotations", {})


async def test_a_rolling_update_restarts_slaves_first_and_the_master_after_a_switchover(world):
    async with running(world):
        status = await start_group(world)
        master, slave = (
            status["master"],
            next(one["pod"] for one in status["members"] if one["pod"] != status["master"]),
        )
        before = {name: pod["metadata"]["uid"] for name, pod in (await world.pods()).items()}
        await world.apply(replicas=2, config={"fileReservedTime": "48"})

        async def replaced(name):
            pod = (await world.pods()).get(name)
            return pod and pod["metadata"]["uid"] != before[name]

        await world.until(lambda: replaced(slave), "the slave is replaced")
        assert not await replaced(master)
        assert await world.condition("Progressing") != ("False", "Idle")
        await world.set_ready(int(slave[-1]))
        await world.until(lambda: replaced(master), "the old master is replaced")
        after = await world.until_status(master=slave)
        assert after["epoch"] > status["epoch"]
        await world.set_ready(int(master[-1]))
        await world.until_status(phase="Running", readyReplicas=2)


async def test_a_broken_new_pod_stops_the_update_before_the_master(world):
    async with running(world):
        status = await start_group(world)
        before = {name: pod["metadata"]["uid"] for name, pod in (await world.pods()).items()}
        await world.apply(replicas=2, image={"name": "cometmq:broken"})

        async def blocked():
            return await world.condition("Progressing") == ("True", "RollBlocked")

        await world.until(blocked, "the update waits for the pod that does not become ready")
        pods = await world.pods()
        assert pods[status["master"]]["metadata"]["uid"] == before[status["master"]]
        await world.apply(replicas=2)  # going back to two replicas replaces the broken pod
        slave = next(name for name in pods if name != status["master"])
        broken = pods[slave]["metadata"]["uid"]

        async def repaired():
            pod = (await world.pods()).get(slave)
            return pod and pod["metadata"]["uid"] != broken

        await world.until(repaired, "the broken pod is replaced")


async def test_a_group_says_which_secret_is_missing_and_starts_once_it_exists(world):
    async with running(world):
        accounts = {"secretName": "accounts", "operatorSecretName": "operator"}
        await world.apply(accounts=accounts)

        async def missing():
            return await world.condition("SpecAccepted") == ("False", "SecretMissing")

        await world.until(missing, "the condition names the Secret")
        assert not await world.pods()
        warnings = [text for reason, text in await world.events() if reason == "SecretMissing"]
        assert any("/accounts does not exist" in text for text in warnings)
        files = {"accounts": ("plain_acl.yml",), "operator": ("accessKey", "secretKey")}
        for name, keys in files.items():
            values = [f"--from-literal={key}=value-of-{key}" for key in keys]
            await world.kubectl("create", "secret", "generic", name, *values)
        await world.until_pods(2)


async def test_tls_is_rolled_out_while_members_differ(world):
    pem = self_signed_pem("brokers.test")
    file = world.folder / "all.pem"
    file.write_text(pem, encoding="ascii")
    tls = {
        "tls.server.certPath": str(file), "tls.server.keyPath": str(file),
        "tls.server.trustCertPath": str(file),
    }  # fmt: skip
    keys = [f"--from-file={key}={file}" for key in ("tls.crt", "tls.key", "ca.crt")]
    async with running(world):
        status = await start_group(world)
        master = status["master"]
        slave = "orders-1" if master == "orders-0" else "orders-0"
        await world.kubectl("create", "secret", "generic", "cert", *keys)
        await world.apply(replicas=2, tls={"secretName": "cert", "controlName": "brokers.test"})

        async def replaced(name):
            marks = (await world.pods()).get(name, {}).get("metadata", {}).get("annotations", {})
            return marks.get("cometmq.io/tls-secret") == "cert"

        for name, next_master in ((slave, master), (master, slave)):
            await world.until(lambda name=name: replaced(name), f"{name} is replaced")
            ordinal = int(name[-1])
            await world.brokers.pop(ordinal).stop()
            await world.start_broker(ordinal, **tls)
            await world.set_ready(ordinal)
            await world.until_status(master=next_master, inSyncCount=2)
        await world.until_status(phase="Running", readyReplicas=2)
        await world.brokers.pop(int(slave[-1])).kill()
        await world.until_status(master=master)


async def test_scaling_in_takes_the_broker_out_of_the_set_first(world):
    async with running(world):
        status = await start_group(world, 2)
        if status["master"] != "orders-1":
            await world.kubectl("annotate", "bg", "orders", "cometmq.io/switchover-to=orders-1")
            await world.until_status(master="orders-1", inSyncCount=2)
        await world.kubectl("scale", "bg/orders", "--replicas=1")
        await world.until_pods(1)
        await world.brokers.pop(1).stop()  # as a kubelet does
        after = await world.until_status(master="orders-0", inSync=["orders-0"], phase="Running")
        assert after["replicas"] == 1
        budgets = await world.get("pdb")
        assert budgets["items"] == []


async def test_objects_changed_by_hand_are_repaired(world):
    async with running(world):
        await world.apply()
        await world.until_pods(2)
        await world.kubectl("delete", "service", "orders-peers")
        patch = json.dumps({"data": {"broker.conf": "brokerName=other\n"}})
        await world.kubectl("patch", "configmap", "orders-config", "--type=merge", "-p", patch)
        await world.kubectl("scale", "sts/orders", "--replicas=0")

        async def repaired():
            config = await world.get("configmap", "orders-config")
            services = await world.get("service")
            names = {one["metadata"]["name"] for one in services["items"]}
            stateful_set = await world.get("sts", "orders")
            return (
                "brokerName=orders\n" in config["data"]["broker.conf"]
                and "orders-peers" in names
                and stateful_set["spec"]["replicas"] == 2
            )

        await world.until(repaired, "objects are as before")


async def test_an_idle_group_causes_no_writes(world):
    async with running(world):
        await start_group(world)

        async def versions():
            found = await world.get("bg,sts,configmap,service,role,networkpolicy")
            return {
                (one["kind"], one["metadata"]["name"]): one["metadata"]["resourceVersion"]
                for one in found["items"]
            }

        async def is_idle():
            before = await versions()
            await asyncio.sleep(5)  # nothing signals that an effect is absent
            return await versions() == before

        await world.until(is_idle, "nothing is written for 5 s")


async def test_a_deletion_waits_until_the_backlog_is_known_and_can_be_forced(world):
    async with running(world):
        await start_group(world)
        for app in world.brokers.values():
            await app.kill()
        world.brokers.clear()
        await world.kubectl("delete", "bg", "orders", "--wait=false")

        async def waits():
            return await world.condition("Progressing") == ("True", "BacklogUnknown")

        await world.until(waits, "the deletion waits, as nobody knows the backlog")
        await world.kubectl("annotate", "bg", "orders", "cometmq.io/skip-drain=true")
        await world.until(gone(world), "the group is deleted")
        assert (await world.get("lease", "-l", "cometmq.io/broker-group=orders"))["items"] == []


async def test_a_deletion_waits_until_consumers_have_consumed_everything(world):
    async with running(world):
        status = await start_group(world)
        client = Client(f"{HOST}:{world.main[int(status['master'][-1])]}")
        assert (await client.send(b"one")).code == 0
        assert (await client.send(b"two")).code == 0
        assert (await client.pull()).code == 0  # a pull makes the consumer group known
        await client.commit(1)
        await world.kubectl("delete", "bg", "orders", "--wait=false")

        async def waits():
            return (await world.status()).get("drain") == {
                "remainingMessages": 1, "waitingFor": ["G: 1"],
            }  # fmt: skip

        await world.until(waits, "the deletion waits for the group that is behind")
        assert await world.condition("Progressing") == ("True", "Backlog")
        # Brokers accept messages until all producers have asked for routes again.
        assert (await client.send(b"three")).code == 0
        await client.commit(2)

        async def grows():
            return (await world.status())["drain"]["remainingMessages"] == 1

        await world.until(grows, "a late message counts")
        await client.commit(3)
        await client.close()
        await world.until(gone(world), "the group is deleted")


async def test_an_operator_that_starts_during_a_deletion_waits_for_consumers_too(world):
    """The operator's first pass over the group runs before its elector has read the record."""
    async with running(world, "one") as first:
        status = await start_group(world)
        client = Client(f"{HOST}:{world.main[int(status['master'][-1])]}")
        assert (await client.send(b"one")).code == 0
        assert (await client.pull()).code == 0  # a pull makes the consumer group known
        await client.commit(0)
        await first.stop()
        await world.kubectl("delete", "bg", "orders", "--wait=false")
        async with running(world, "two"):

            async def waits():
                return (await world.status()).get("drain") == {
                    "remainingMessages": 1, "waitingFor": ["G: 1"],
                }  # fmt: skip

            await world.until(waits, "the deletion waits for the group that is behind")
            await client.commit(1)
            await client.close()
            await world.until(gone(world), "the group is deleted")


async def test_an_empty_group_is_deleted_at_once(world):
    async with running(world):
        await start_group(world)
        await world.kubectl("delete", "bg", "orders", "--wait=false")
        await world.until(gone(world), "the group is deleted")


async def test_a_standby_takes_over_when_the_operator_ends(world):
    async with running(world, "one") as first:
        await world.until(acting(first), "the first operator acts")
        async with running(world, "two") as second:
            await asyncio.sleep(1)  # nothing signals that an effect is absent
            assert not second.acting.is_set()
            await first.stop()
            await world.until(acting(second), "the standby acts")
            await world.apply()
            await world.until_pods(2)
