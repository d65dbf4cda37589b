# SPDX-License-Identifier: Apache-2.0
"""A real API server rejects invalid objects with helpful errors, and fills in defaults."""

import json

import pytest

GOOD = {"nameServers": ["namesrv:9876"]}
FULL = {"replicas": 3, "brokerName": "orders", "storage": {"size": "20Gi"}}
NAMED = {"name": "Orders_Paid", "clusterName": "prod"}
DECLARED = pytest.mark.parametrize("kind", ["Topic", "ConsumerGroup"])
NODE_PORT = {"type": "NodePort"}


def apply(kube, namespace, kind, spec, name="orders", **options):
    """Apply an object; its spec has a name server unless it names others."""
    body = {
        "apiVersion": "cometmq.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": GOOD | spec,
    }
    text = json.dumps(body)
    return kube.kubectl("apply", "--validate=false", "-f", "-", stdin=text, **options)


def refusal(*given, **options):
    return apply(*given, is_checked=False, **options)


def of_a_client(*peers):
    return {"networkPolicy": {"clients": peers}}


GROUPS = [
    ({"nameServers": []}, "spec.nameServers in body should have at least 1 items"),
    ({"nameServers": None}, "spec.nameServers: Required value"),
    ({"nameServers": ["namesrv"]}, "spec.nameServers[0] in body should match"),
    ({"replicas": 0}, "spec.replicas in body should be greater than or equal to 1"),
    ({"replicas": "two"}, "spec.replicas in body must be of type integer"),
    ({"brokerName": "my orders"}, "spec.brokerName in body should match '^[A-Za-z0-9_-]+$'"),
    ({"clusterName": ""}, "spec.clusterName in body should be at least 1 chars long"),
    (
        {"replication": {"minInSync": 3}},
        "replication.minInSync must not exceed replicas: no message would ever be accepted",
    ),
    (
        {"replication": {"heardWithinMs": 6000}},
        "heardWithinMs must be less than renewDeadlineMs",
    ),
    (
        {"config": {"brokerId": "3"}},
        "the operator sets these keys from other fields, remove them: adminHttpPort,",
    ),
    (
        {"config": {"file reserved": "3"}},
        "keys are names of settings, such as fileReservedTime",
    ),
    ({"config": {"fileReservedTime": "3\nbrokerId=1"}}, "values are single lines"),
    ({"config": {"fileReservedTime": 3}}, "config.fileReservedTime in body must be of type string"),
    ({"storage": {"size": "20"}}, "storage.size in body should match '^[1-9][0-9]*(Mi|Gi|Ti)$'"),
    (
        {"external": {**NODE_PORT, "nodePorts": [30911]}},
        "external.nodePorts needs a port for each of the replicas",
    ),
    (
        {"external": {**NODE_PORT, "nodePorts": [30911, 30911]}},
        "two brokers cannot have the same node port",
    ),
    (
        {"external": {"type": "LoadBalancer", "hosts": ["mq-0.example.com"]}},
        "external.hosts needs the address of a load balancer for each of the replicas",
    ),
    (
        {"external": {"type": "LoadBalancer", "hosts": ["a", "b"], "nodePorts": [30911]}},
        "nodePorts need type NodePort",
    ),
    (
        {"external": {**NODE_PORT, "nodePorts": [1, 2], "hosts": ["a"]}},
        "external.hosts needs an address for each of the replicas, or none",
    ),
    ({"updateStrategy": {"type": "Recreate"}}, 'values: "RollingSwitchover", "OnDelete"'),
    ({"tls": {"mode": "Enforcing"}}, "spec.tls.secretName: Required value"),
    ({"tls": {"secretName": "My_Cert"}}, "spec.tls.secretName in body should match"),
    (
        {"tls": {"secretName": "cert"}, "config": {"tls.server.mode": "disabled"}},
        "with spec.tls, config must not have the keys useTLS and tls.*: remove them",
    ),
    (
        {"accounts": {"operatorSecretName": "operator"}},
        "spec.accounts.secretName: Required value",
    ),
    (
        {
            "accounts": {"secretName": "a", "operatorSecretName": "o"},
            "config": {"aclEnable": "false"},
        },
        "with spec.accounts, config must not have the keys aclEnable and aclFile: remove them",
    ),
    (
        of_a_client({"podSelector": {}}, {}),
        "a peer needs podSelector, namespaceSelector or ipBlock",
    ),
    (
        of_a_client({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}),
        "ipBlock cannot be combined with selectors: use two peers",
    ),
    (
        of_a_client({"ipBlock": {"cidr": "10.0.0.1"}}),
        "clients[0].ipBlock.cidr in body should match",
    ),
]
TOPICS = [
    ({"nameServers": ["namesrv"]}, "spec.nameServers[0] in body should match"),
    ({"tls": {}}, "spec.tls.secretName: Required value"),
    ({"writeQueueNums": 16385}, "writeQueueNums in body should be less than or equal to 16384"),
    (
        {"writeQueueNums": 8, "readQueueNums": 4},
        "readQueueNums must be at least writeQueueNums",
    ),
    ({"permission": "rw"}, 'supported values: "ReadWrite", "Read", "Write"'),
    ({"topicSysFlag": 4}, "spec.topicSysFlag in body should be less than or equal to 3"),
    ({"name": "%RETRY%g"}, "spec.name in body should match"),
    ({"name": "SCHEDULE_TOPIC_XXXX"}, "is a topic of RocketMQ's own: choose another name"),
    ({"name": "rmq_sys_mine"}, "is a topic of RocketMQ's own: choose another name"),
    ({"name": "t" * 128}, "spec.name: Too long: may not be more than 127"),
    ({"brokerNames": ["a", "a"]}, 'spec.brokerNames[1]: Duplicate value: "a"'),
]
CONSUMER_GROUPS = [
    ({"accountSecretName": "My Account"}, "spec.accountSecretName in body should match"),
    ({"retryMaxTimes": -1}, "spec.retryMaxTimes in body should be greater than or equal to 0"),
    ({"consumeEnable": "yes"}, "spec.consumeEnable in body must be of type boolean"),
    ({"name": "CID_RMQ_SYS_TRANS"}, "is a group of RocketMQ's own: choose another name"),
    ({"name": "TOOLS_CONSUMER"}, "is a group of RocketMQ's own: choose another name"),
]
BAD = [
    (kind, *case)
    for kind, cases in (
        ("BrokerGroup", GROUPS),
        ("Topic", TOPICS),
        ("ConsumerGroup", CONSUMER_GROUPS),
    )
    for case in cases
]


@pytest.mark.parametrize(("kind", "spec", "words"), BAD)
def test_a_wrong_value_is_refused_with_the_field_and_what_is_allowed(
    kube, namespace, kind, spec, words
):
    assert words in refusal(kube, namespace, kind, spec)
    assert "orders" not in kube.kubectl("get", kind, "-n", namespace)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("o" * 41, "metadata.name may have at most 40 characters"),
        ("1orders", "metadata.name must begin with a letter and have no dot"),
        ("orders.eu", "metadata.name must begin with a letter and have no dot"),
    ],
)
def test_a_name_that_no_service_can_have_is_refused(kube, namespace, name, words):
    assert words in refusal(kube, namespace, "BrokerGroup", {}, name=name)


@DECLARED
def test_an_object_whose_name_rocketmq_does_not_allow_needs_another(kube, namespace, kind):
    said = refusal(kube, namespace, kind, {}, name="orders.paid")
    assert "metadata.name has a dot, which RocketMQ does not allow: set spec.name" in said
    apply(kube, namespace, kind, NAMED, name="orders.paid")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clusterName": "Other"}, "spec.clusterName: Invalid value"),
        ({"brokerName": "other"}, "cannot be changed: create another BrokerGroup"),
        ({"brokerName": None}, "brokerName cannot be added or removed later"),
        (
            {"storage": {"size": "19Gi"}},
            "volumes can grow but not shrink: keep the size or raise it",
        ),
        (
            {"storage": {"size": "20Gi", "className": "fast"}},
            "className cannot be changed: volumes keep their class",
        ),
    ],
)
def test_a_change_that_cannot_be_carried_out_is_refused(kube, namespace, change, words):
    apply(kube, namespace, "BrokerGroup", FULL)
    assert words in refusal(kube, namespace, "BrokerGroup", FULL | change)
    apply(kube, namespace, "BrokerGroup", FULL | {"storage": {"size": "20481Mi"}})


@DECLARED
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "Other"}, "cannot be changed: create another"),
        ({"name": None}, "name cannot be added or removed later"),
        ({"clusterName": "test"}, "cannot be changed: create another"),
    ],
)
def test_a_name_cannot_be_changed(kube, namespace, kind, change, words):
    apply(kube, namespace, kind, NAMED)
    assert words in refusal(kube, namespace, kind, NAMED | change)


DEFAULTS = {
    "BrokerGroup": {
        "clusterName": "DefaultCluster",
        "deletion": "Drain",
        "image": {"pullPolicy": "IfNotPresent"},
        "masterService": True,
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
    },
    "Topic": {
        "clusterName": "DefaultCluster",
        "deletionPolicy": "Retain",
        "permission": "ReadWrite",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    },
    "ConsumerGroup": {
        "clusterName": "DefaultCluster",
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "deletionPolicy": "Retain",
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_visible(kube, namespace, kind):
    apply(kube, namespace, kind, {})
    assert kube.objects(kind, "orders", "-n", namespace)["spec"] == GOOD | DEFAULTS[kind]


def test_parts_of_objects_get_the_other_defaults(kube, namespace):
    given = {"replication": {"minInSync": 2}, "tls": {"secretName": "cert"}}
    apply(kube, namespace, "BrokerGroup", given)
    spec = kube.objects("bg", "orders", "-n", namespace)["spec"]
    assert spec["replication"]["renewDeadlineMs"] == 6000
    assert spec["tls"] == {"clientAuth": "None", "mode": "Permissive", "secretName": "cert"}


@pytest.mark.parametrize(
    ("kind", "columns", "field", "words"),
    [
        (
            "BrokerGroup",
            "NAME MASTER EPOCH IN SYNC READY REPLICAS PHASE AGE",
            "replication.minInSync",
            "Number of copies, including the master's, that must be in sync",
        ),
        (
            "Topic",
            "NAME TOPIC QUEUES PERMISSION READY REASON AGE",
            "writeQueueNums",
            "Number of queues per broker group to which",
        ),
        (
            "ConsumerGroup",
            "NAME GROUP ENABLED RETRIES READY REASON AGE",
            "retryMaxTimes",
            "becomes a dead letter",
        ),
    ],
)
def test_kubectl_lists_and_explains(kube, namespace, kind, columns, field, words):
    apply(kube, namespace, kind, {})
    table = kube.kubectl("get", kind, "-n", namespace).splitlines()
    assert table[0].split() == columns.split()
    assert words in kube.kubectl("explain", f"{kind.lower()}.spec.{field}")


def test_kubectl_scales(kube, namespace):
    apply(kube, namespace, "BrokerGroup", {})
    kube.kubectl("scale", "bg/orders", "-n", namespace, "--replicas=3")
    table = kube.kubectl("get", "cometmq", "-n", namespace)
    assert " 3 " in table.splitlines()[1]
