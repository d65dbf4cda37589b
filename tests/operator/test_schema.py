# SPDX-License-Identifier: Apache-2.0
"""A real API server rejects invalid BrokerGroups with helpful errors, and fills in defaults."""

import copy
import json
from typing import Any

import pytest

GOOD = {"nameServers": ["namesrv:9876"]}
FULL = {**GOOD, "replicas": 3, "brokerName": "orders", "storage": {"size": "20Gi"}}


def body(namespace, spec, name="orders"):
    return {
        "apiVersion": "cometmq.io/v1alpha1",
        "kind": "BrokerGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def apply(kube, namespace, spec, name="orders", **options):
    text = json.dumps(body(namespace, spec, name))
    return kube.kubectl("apply", "--validate=false", "-f", "-", stdin=text, **options)


BAD = {
    "no name server": (
        {"nameServers": []},
        ("spec.nameServers: Invalid value: 0: spec.nameServers in body should have at"
        " least 1 items"),
    ),
    "name servers missing": (
        {},
        "spec.nameServers: Required value",
    ),
    "name server without port": (
        {"nameServers": ["namesrv"]},
        "spec.nameServers[0] in body should match",
    ),
    "too many name servers": (
        {"nameServers": ["n:9876"] * 17},
        "spec.nameServers: Too many: 17: must have at most 16 items",
    ),
    "no broker": (
        {**GOOD, "replicas": 0},
        "spec.replicas in body should be greater than or equal to 1",
    ),
    "too many brokers": (
        {**GOOD, "replicas": 10},
        "spec.replicas in body should be less than or equal to 9",
    ),
    "brokers as text": (
        {**GOOD, "replicas": "two"},
        ('spec.replicas: Invalid value: "string": spec.replicas in body must be of type'
        ' integer'),
    ),
    "space in the broker name": (
        {**GOOD, "brokerName": "my orders"},
        "spec.brokerName in body should match '^[A-Za-z0-9_-]+$'",
    ),
    "empty cluster name": (
        {**GOOD, "clusterName": ""},
        "spec.clusterName in body should be at least 1 chars long",
    ),
    "more in sync than brokers": (
        {**GOOD, "replication": {"minInSync": 3}},
        "replication.minInSync must not exceed replicas: no message would ever be accepted",
    ),
    "deadline below heartbeat": (
        {**GOOD, "replication": {"heardWithinMs": 6000}},
        "heardWithinMs must be less than renewDeadlineMs",
    ),
    "deadline too short": (
        {**GOOD, "replication": {"renewDeadlineMs": 100}},
        "spec.replication.renewDeadlineMs in body should be greater than or equal to 500",
    ),
    "a setting of the operator": (
        {**GOOD, "config": {"brokerId": "3"}},
        "the operator sets these keys from other fields, remove them: adminHttpPort,",
    ),
    "a setting that is none": (
        {**GOOD, "config": {"file reserved": "3"}},
        "keys are names of settings, such as fileReservedTime",
    ),
    "a value of two lines": (
        {**GOOD, "config": {"fileReservedTime": "3\nbrokerId=1"}},
        "values are single lines",
    ),
    "a number as a value": (
        {**GOOD, "config": {"fileReservedTime": 3}},
        "spec.config.fileReservedTime in body must be of type string",
    ),
    "a size without unit": (
        {**GOOD, "storage": {"size": "20"}},
        "spec.storage.size in body should match '^[1-9][0-9]*(Mi|Gi|Ti)$'",
    ),
    "a broker without a node port": (
        {**GOOD, "external": {"type": "NodePort", "nodePorts": [30911]}},
        "external.nodePorts needs a port for each of the replicas",
    ),
    "a node port of two brokers": (
        {**GOOD, "external": {"type": "NodePort", "nodePorts": [30911, 30911]}},
        "two brokers cannot have the same node port",
    ),
    "a broker without a load balancer": (
        {**GOOD, "external": {"type": "LoadBalancer", "hosts": ["mq-0.example.com"]}},
        "external.hosts needs the address of a load balancer for each of the replicas",
    ),
    "node ports of load balancers": (
        {**GOOD, "external": {"type": "LoadBalancer", "hosts": ["a", "b"], "nodePorts": [30911]}},
        "nodePorts need type NodePort",
    ),
    "a node without a host": (
        {**GOOD, "external": {"type": "NodePort", "nodePorts": [1, 2], "hosts": ["a"]}},
        "external.hosts needs an address for each of the replicas, or none",
    ),
    "unknown retention": (
        {**GOOD, "storage": {"retain": {"whenDeleted": "Keep"}}},
        ('spec.storage.retain.whenDeleted: Unsupported value: "Keep": supported values:'
        ' "Retain", "Delete"'),
    ),
    "unknown rollout": (
        {**GOOD, "updateStrategy": {"type": "Recreate"}},
        'supported values: "RollingSwitchover", "OnDelete"',
    ),
    "unknown deletion": (
        {**GOOD, "deletion": "Later"},
        'spec.deletion: Unsupported value: "Later": supported values: "Drain", "Now"',
    ),
    "unknown pull policy": (
        {**GOOD, "image": {"pullPolicy": "Sometimes"}},
        'supported values: "Always", "IfNotPresent", "Never"',
    ),
    "TLS without a Secret": (
        {**GOOD, "tls": {"mode": "Enforcing"}},
        "spec.tls.secretName: Required value",
    ),
    "unknown TLS mode": (
        {**GOOD, "tls": {"secretName": "cert", "mode": "enforcing"}},
        ('spec.tls.mode: Unsupported value: "enforcing": supported values: "Permissive",'
        ' "Enforcing"'),
    ),
    "unknown demand for certificates": (
        {**GOOD, "tls": {"secretName": "cert", "clientAuth": "true"}},
        'spec.tls.clientAuth: Unsupported value: "true": supported values: "None", "Optional",',
    ),
    "a Secret that cannot exist": (
        {**GOOD, "tls": {"secretName": "My_Cert"}},
        "spec.tls.secretName in body should match",
    ),
    "TLS twice": (
        {**GOOD, "tls": {"secretName": "cert"}, "config": {"tls.server.mode": "disabled"}},
        "with spec.tls, config must not have the keys useTLS and tls.*: remove them",
    ),
    "accounts without a file": (
        {**GOOD, "accounts": {"operatorSecretName": "operator"}},
        "spec.accounts.secretName: Required value",
    ),
    "accounts without one for the operator": (
        {**GOOD, "accounts": {"secretName": "accounts"}},
        "spec.accounts.operatorSecretName: Required value",
    ),
    "accounts twice": (
        {**GOOD, "accounts": {"secretName": "a", "operatorSecretName": "o"},
         "config": {"aclEnable": "false"}},
        "with spec.accounts, config must not have the keys aclEnable and aclFile: remove them",
    ),
    "clients that are no list": (
        {**GOOD, "networkPolicy": {"clients": {"podSelector": {}}}},
        "spec.networkPolicy.clients in body must be of type array",
    ),
    "a client of no kind": (
        {**GOOD, "networkPolicy": {"clients": [{"podSelector": {}}, {}]}},
        "a peer needs podSelector, namespaceSelector or ipBlock",
    ),
    "a client by address and labels": (
        {**GOOD, "networkPolicy": {"clients": [
            {"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}},
        ]}},
        "ipBlock cannot be combined with selectors: use two peers",
    ),
    "an address without prefix": (
        {**GOOD, "networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.1"}}]}},
        "spec.networkPolicy.clients[0].ipBlock.cidr in body should match",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_value_is_refused_with_the_field_and_what_is_allowed(kube, namespace, case):
    spec, words = BAD[case]
    said = apply(kube, namespace, spec, is_checked=False)
    assert words in said
    assert "orders" not in kube.kubectl("get", "bg", "-n", namespace)


def test_a_long_name_is_refused(kube, namespace):
    said = apply(kube, namespace, GOOD, name="o" * 41, is_checked=False)
    assert "metadata.name may have at most 40 characters" in said


@pytest.mark.parametrize("name", ["1orders", "orders.eu"])
def test_a_name_that_no_service_can_have_is_refused(kube, namespace, name):
    said = apply(kube, namespace, GOOD, name=name, is_checked=False)
    assert "metadata.name must begin with a letter and have no dot" in said


CHANGES: dict[str, Any] = {
    "cluster name": (
        {"clusterName": "Other"},
        "spec.clusterName: Invalid value",
    ),
    "broker name": (
        {"brokerName": "other"},
        "cannot be changed: create another BrokerGroup",
    ),
    "smaller volumes": (
        {"storage": {"size": "19Gi"}},
        "volumes can grow but not shrink: keep the size or raise it",
    ),
    "storage class": (
        {"storage": {"size": "20Gi", "className": "fast"}},
        "className cannot be changed: volumes keep their class",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_that_cannot_be_carried_out_is_refused(kube, namespace, case):
    change, words = CHANGES[case]
    apply(kube, namespace, FULL)
    said = apply(kube, namespace, copy.deepcopy(FULL) | change, is_checked=False)
    assert words in said


def test_a_broker_name_cannot_be_added_later(kube, namespace):
    apply(kube, namespace, GOOD)
    said = apply(kube, namespace, {**GOOD, "brokerName": "orders"}, is_checked=False)
    assert "brokerName cannot be added or removed later" in said


def test_volumes_may_grow_in_other_units(kube, namespace):
    apply(kube, namespace, FULL)
    apply(kube, namespace, FULL | {"storage": {"size": "20481Mi"}})


def test_defaults_of_tls_are_visible_once_it_is_on(kube, namespace):
    apply(kube, namespace, {**GOOD, "tls": {"secretName": "cert"}})
    tls = kube.objects("bg", "orders", "-n", namespace)["spec"]["tls"]
    assert tls == {"clientAuth": "None", "mode": "Permissive", "secretName": "cert"}


def test_defaults_are_visible(kube, namespace):
    apply(kube, namespace, GOOD)
    spec = kube.objects("bg", "orders", "-n", namespace)["spec"]
    assert spec == {
        "clusterName": "DefaultCluster",
        "deletion": "Drain",
        "image": {"pullPolicy": "IfNotPresent"},
        "masterService": True,
        "nameServers": ["namesrv:9876"],
        "networkPolicy": {},
        "paused": False,
        "podDisruptionBudget": {"enabled": True},
        "replicas": 2,
        "replication": {
            "heardWithinMs": 1500, "minInSync": 1, "renewDeadlineMs": 6000,
            "replicaLagTimeoutMs": 10000, "switchoverTimeoutMs": 2000,
        },
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        "scheduling": {},
        "storage": {
            "retain": {"whenDeleted": "Retain", "whenScaled": "Retain"}, "size": "20Gi",
        },
        "updateStrategy": {"type": "RollingSwitchover"},
    }  # fmt: skip


def test_parts_of_objects_get_the_other_defaults(kube, namespace):
    apply(kube, namespace, {**GOOD, "replication": {"minInSync": 2}, "storage": {"size": "1Ti"}})
    spec = kube.objects("bg", "orders", "-n", namespace)["spec"]
    assert spec["replication"]["renewDeadlineMs"] == 6000
    assert spec["storage"]["retain"]["whenDeleted"] == "Retain"


def test_kubectl_explains_every_level(kube):
    said = kube.kubectl("explain", "bg.spec.replication.minInSync")
    assert "Number of copies, including the master's, that must be in sync" in said
    assert "When the master is lost" in kube.kubectl("explain", "bg")


def test_kubectl_scales_and_lists(kube, namespace):
    apply(kube, namespace, GOOD)
    kube.kubectl("scale", "bg/orders", "-n", namespace, "--replicas=3")
    table = kube.kubectl("get", "cometmq", "-n", namespace)
    columns = "NAME MASTER EPOCH IN SYNC READY REPLICAS PHASE AGE"
    assert table.splitlines()[0].split() == columns.split()
    assert " 3 " in table.splitlines()[1]
