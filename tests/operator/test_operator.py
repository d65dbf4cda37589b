# SPDX-License-Identifier: Apache-2.0
"""Groups are created, fail over and are repaired; a standby operator takes over."""

import asyncio
import json

from cometmq.runtime import properties


async def test_a_group_is_created_and_explains_itself(world):
    async with world.operated():
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
            ("Service", "orders-master"),
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


async def slice_of(world):
    """Return the pod and the epoch in the EndpointSlice of the master's Service."""
    found = await world.get("endpointslices", "-l", "kubernetes.io/service-name=orders-master")
    if not found["items"] or not found["items"][0]["endpoints"]:
        return None
    (one,) = found["items"]
    (endpoint,) = one["endpoints"]
    assert endpoint["addresses"] == [f"10.0.0.{endpoint['targetRef']['name'][-1]}"]
    return endpoint["targetRef"]["name"], int(one["metadata"]["annotations"]["cometmq.io/epoch"])


async def test_a_service_leads_to_the_master_whichever_pod_that_is(world):
    """Brokers register its address; it follows failovers, and a person's changes are undone."""
    async with world.operated():
        status = await world.start_group()
        service = await world.get("service", "orders-master")
        assert "selector" not in service["spec"]
        config = await world.get("configmap", "orders-config")
        address = f"{service['spec']['clusterIP']}:10911"
        assert properties.parse(config["data"]["broker.conf"])["groupAddress"] == address

        async def leads_to(master, epoch):
            return await slice_of(world) == (master, epoch)

        first = status["master"]
        await world.until(lambda: leads_to(first, status["epoch"]), "the Service leads there")
        await world.brokers.pop(int(first[-1])).kill()
        other = f"orders-{1 - int(first[-1])}"
        after = await world.until_status(master=other)
        await world.until(lambda: leads_to(other, after["epoch"]), "it leads to the next master")

        selector = ("-l", "kubernetes.io/service-name=orders-master", "-o", "name")
        (name,) = (await world.kubectl("get", "endpointslices", *selector)).split()
        await world.kubectl("patch", name, "--type=merge", "-p", '{"endpoints": []}')
        await world.until(lambda: leads_to(other, after["epoch"]), "it is repaired")
        await world.kubectl("delete", name)
        await world.until(lambda: leads_to(other, after["epoch"]), "it is created again")


async def test_a_group_without_the_service_registers_its_pods(world):
    async with world.operated():
        await world.apply()
        await world.until_pods(2)
        await world.apply(masterService=False)

        async def is_gone():
            services = await world.get("services")
            config = await world.get("configmap", "orders-config")
            names = [one["metadata"]["name"] for one in services["items"]]
            return names == ["orders-peers"] and "groupAddress" not in config["data"]["broker.conf"]

        await world.until(is_gone, "the Service is gone")


async def test_a_lost_master_is_replaced_although_its_pod_is_ready(world):
    async with world.operated():
        status = await world.start_group()
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


async def test_objects_changed_by_hand_are_repaired(world):
    async with world.operated():
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
    async with world.operated():
        await world.start_group()

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


def acting(app):
    async def check():
        return app.acting.is_set()

    return check


async def test_a_standby_takes_over_when_the_operator_ends(world):
    async with world.operated("one") as first:
        await world.until(acting(first), "the first operator acts")
        async with world.operated("two") as second:
            await asyncio.sleep(1)  # nothing signals that an effect is absent
            assert not second.acting.is_set()
            await first.stop()
            await world.until(acting(second), "the standby acts")
            await world.apply()
            await world.until_pods(2)
