# SPDX-License-Identifier: Apache-2.0
"""Changes of the spec: rolling updates, TLS, the number of brokers, addresses outside."""

import json

from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.testing.operator.states import group


async def test_a_rolling_update_restarts_slaves_first_and_the_master_after_a_switchover(world):
    async with world.operated():
        status = await world.start_group()
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
    async with world.operated():
        status = await world.start_group()
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
    async with world.operated():
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
    async with world.operated():
        status = await world.start_group()
        master = status["master"]
        slave = "orders-1" if master == "orders-0" else "orders-0"
        await world.kubectl("create", "secret", "generic", "cert", *keys)
        await world.apply(replicas=2, tls={"secretName": "cert", "controlName": "brokers.test"})

        async def replaced(name):
            marks = (await world.pods()).get(name, {}).get("metadata", {}).get("annotations", {})
            return marks.get("cometmq.io/tls-secret") == "cert"

        for name in (slave, master):  # the master is replaced once the slave is in sync again
            await world.until(lambda name=name: replaced(name), f"{name} is replaced")
            ordinal = int(name[-1])
            await world.brokers.pop(ordinal).stop()
            await world.start_broker(ordinal, **tls)
            await world.set_ready(ordinal)
        await world.until_status(phase="Running", master=slave, inSyncCount=2, readyReplicas=2)
        await world.brokers.pop(int(slave[-1])).kill()
        await world.until_status(master=master)


async def test_scaling_in_takes_the_broker_out_of_the_set_first(world):
    async with world.operated():
        status = await world.start_group(2)
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


async def test_services_for_clients_outside_come_and_go(world):
    def are(*names):
        async def check():
            found = await world.get("services", "-l", "cometmq.io/broker-group=orders")
            return {one["metadata"]["name"] for one in found["items"]} == {"orders-peers", *names}

        return check

    async with world.operated():
        await world.apply(external={"type": "NodePort", "nodePorts": [30911, 30921]})
        await world.until(are("orders-0-external", "orders-1-external"), "a Service per broker")
        config = await world.get("configmap", "orders-config")
        assert "advertisedAddresses=0=:30911;1=:30921\n" in config["data"]["broker.conf"]
        await world.kubectl("create", "service", "clusterip", "foreign", "--tcp=1")
        labels = [f"{key}={value}" for key, value in group().labels.items()]
        await world.kubectl("label", "service", "foreign", "--overwrite", *labels)
    async with world.operated("two"):  # another operator, which did not create the Services
        patch = json.dumps({"spec": {"external": None}})
        await world.kubectl("patch", "bg", "orders", "--type=merge", "-p", patch)
        await world.until(are("foreign", "orders-master"), "the Services of others are left")
