# SPDX-License-Identifier: Apache-2.0
"""The Service that leads to the master, and the writes that move it."""

import msgspec
import pytest

from cometmq.broker.registration.addresses import shared_address
from cometmq.broker.settings import BrokerSettings
from cometmq.operator.api import ApiRefused
from cometmq.operator.broker_groups.master_endpoint import MasterEndpoint
from cometmq.operator.broker_groups.master_service import MasterPod, address_of, endpoint_slice
from cometmq.operator.broker_groups.render import broker_conf, config_hash, master_service, objects
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.settings import load
from cometmq.testing.operator.api import MemoryApi
from cometmq.testing.operator.states import group

SERVICE = "s-1"
POD = MasterPod("orders-1", "p-1", "10.0.0.1", "node-b", 4)
NODE_PORTS = {"type": "NodePort", "nodePorts": [30911, 30921]}
OUTSIDE = {**NODE_PORTS, "masterHost": "mq.example.com", "masterNodePort": 30900}
BALANCED = {"type": "LoadBalancer", "hosts": ["192.0.2.1", "192.0.2.2"], "masterHost": "192.0.2.9"}


def with_ip(address):
    return {"spec": {"clusterIP": address}}


def rendered(one, address=""):
    return objects(
        one, image="i", replicas=2, volume_size="1Gi", operator_namespace="o",
        group_address=address,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "address"),
    [
        ({}, "10.96.0.7:10911"),
        ({"masterService": False}, ""),
        ({"external": NODE_PORTS}, ""),
        ({"external": OUTSIDE}, "mq.example.com:30900"),
        ({"external": BALANCED}, "192.0.2.9:10911"),
    ],
    ids=["service", "pods", "node ports", "one node port", "balancer"],
)
def test_a_master_registers_the_address_of_its_service(tmp_path, spec, address):
    one = group(**spec)
    found = address_of(one, with_ip("10.96.0.7"))
    assert found == address
    file = tmp_path / "broker.conf"
    file.write_text(broker_conf(one, group_address=found), encoding="utf-8")
    loaded = load(BrokerSettings, prefix="COMETMQ_TEST_NONE", file=file)
    assert loaded.unknown == {}
    shared = shared_address(loaded)
    assert (shared is not None) is bool(address)
    assert f"{shared.host}:{shared.port}" == address if shared else True
    names = [each["metadata"]["name"] for each in rendered(one) if each["kind"] == "Service"]
    assert ("orders-master" in names) is one.has_master_service is bool(address)


def test_an_address_of_version_six_is_in_brackets():
    assert address_of(group(), with_ip("fd00::7")) == "[fd00::7]:10911"


def test_a_service_without_an_address_is_not_registered():
    assert address_of(group(), {"metadata": {"uid": "s"}}) == address_of(group(), None) == ""


def test_a_new_address_restarts_the_brokers():
    one, other = (config_hash(rendered(group(), text)) for text in ("a:1", "b:1"))
    assert one != other


def test_the_service_selects_no_pods_and_has_the_ports_of_clients():
    spec = master_service(group())["spec"]
    assert "selector" not in spec
    assert [each["port"] for each in spec["ports"]] == [10911, 10909]
    outside = master_service(group(external={**OUTSIDE, "annotations": {"a": "b"}}))
    assert outside["spec"]["ports"][0]["nodePort"] == 30900
    assert outside["spec"]["type"] == "NodePort"
    assert outside["metadata"]["annotations"] == {"a": "b"}
    ranges = ["192.0.2.0/24"]
    balanced = master_service(group(external={**BALANCED, "loadBalancerSourceRanges": ranges}))
    assert balanced["spec"]["loadBalancerSourceRanges"] == ranges


def test_an_endpoint_slice_names_one_pod_and_goes_with_the_service():
    found = endpoint_slice(group(), SERVICE, POD)
    metadata = found["metadata"]
    assert metadata["labels"]["kubernetes.io/service-name"] == "orders-master"
    assert metadata["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Service", "name": "orders-master", "uid": "s-1"}
    ]
    assert found["addressType"] == "IPv4"
    (endpoint,) = found["endpoints"]
    assert (endpoint["addresses"], endpoint["nodeName"]) == (["10.0.0.1"], "node-b")
    six = endpoint_slice(group(), SERVICE, msgspec.structs.replace(POD, address="fd00::1", node=""))
    assert (six["addressType"], six["metadata"]["name"]) == ("IPv6", "orders-master-ipv6")
    assert "nodeName" not in six["endpoints"][0]


SLICE = ("EndpointSlice", "mq", "orders-master-ipv4")


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


def pod_of(api):
    return api.objects[SLICE]["endpoints"][0]["targetRef"]["name"]


def version_of(api):
    return api.objects[SLICE]["metadata"]["resourceVersion"]


@pytest.fixture
def endpoint(api) -> MasterEndpoint:
    return MasterEndpoint(api, log=NO_LOG)


LATER = MasterPod("orders-0", "p-0", "10.0.0.2", "", 5)


async def test_an_operator_moves_its_own_slice_with_one_request(api, endpoint):
    await endpoint.point(group(), SERVICE, POD)
    await endpoint.point(group(), SERVICE, POD)
    await endpoint.point(group(), SERVICE, LATER)
    assert [verb for verb, *_ in api.calls] == ["create", "patch"]
    assert pod_of(api) == "orders-0"


async def test_a_slice_of_another_operator_is_taken_over(api, endpoint):
    await MasterEndpoint(api, log=NO_LOG).point(group(), SERVICE, POD)
    await endpoint.point(group(), SERVICE, LATER)
    assert pod_of(api) == "orders-0"


async def test_a_late_write_does_not_move_the_service_back(api, endpoint):
    await endpoint.point(group(), SERVICE, POD)
    other = MasterEndpoint(api, log=NO_LOG)
    await other.point(group(), SERVICE, LATER)
    await endpoint.point(group(), SERVICE, msgspec.structs.replace(POD, node="elsewhere"))
    assert pod_of(api) == "orders-0"


async def test_a_slice_that_was_deleted_or_changed_is_written_again(api, endpoint):
    await endpoint.point(group(), SERVICE, POD)
    await api.patch(*SLICE, {"endpoints": []})
    endpoint.note_version(SLICE[2], version_of(api))
    await endpoint.point(group(), SERVICE, POD)
    assert pod_of(api) == "orders-1"
    endpoint.note_version(SLICE[2], version_of(api))  # the event of its own write
    api.calls.clear()
    await endpoint.point(group(), SERVICE, POD)
    assert api.calls == []
    api.objects.clear()
    endpoint.note_version("orders-master-ipv4", "")
    await endpoint.point(group(), SERVICE, POD)
    assert pod_of(api) == "orders-1"


async def test_a_slice_that_is_not_the_groups_is_left_alone(api, endpoint):
    api.put(*SLICE[::2], metadata={"labels": {"app": "other"}}, endpoints=[])
    with pytest.raises(ApiRefused, match="EndpointSlice orders-master-ipv4 exists and is not"):
        await endpoint.point(group(), SERVICE, LATER)
    assert api.objects[SLICE]["endpoints"] == []


async def test_a_refused_right_is_reported(api, endpoint):
    def refused(*_):
        raise ApiRefused(403, "forbidden")

    api.before = refused
    with pytest.raises(ApiRefused, match="forbidden"):
        await endpoint.point(group(), SERVICE, POD)
