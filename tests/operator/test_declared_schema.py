# SPDX-License-Identifier: Apache-2.0
"""A real API server rejects invalid Topics and ConsumerGroups, and fills in defaults."""

import json

import pytest

GOOD = {"nameServers": ["namesrv:9876"]}
NAMED = {**GOOD, "name": "Orders_Paid", "clusterName": "prod"}


def apply(kube, namespace, kind, spec, name="orders", **options):
    body = {
        "apiVersion": "cometmq.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    text = json.dumps(body)
    return kube.kubectl("apply", "--validate=false", "-f", "-", stdin=text, **options)


BAD = {
    "topic without name servers": ("Topic", {}, "spec.nameServers: Required value"),
    "name server without port": (
        "Topic",
        {"nameServers": ["namesrv"]},
        "spec.nameServers[0] in body should match",
    ),
    "TLS without a Secret": (
        "Topic",
        {**GOOD, "tls": {}},
        "spec.tls.secretName: Required value",
    ),
    "an account that is no name": (
        "ConsumerGroup",
        {**GOOD, "accountSecretName": "My Account"},
        "spec.accountSecretName in body should match",
    ),
    "no queue": (
        "Topic",
        {**GOOD, "writeQueueNums": 0},
        "spec.writeQueueNums in body should be greater than or equal to 1",
    ),
    "too many queues": (
        "Topic",
        {**GOOD, "writeQueueNums": 16385},
        "spec.writeQueueNums in body should be less than or equal to 16384",
    ),
    "queues that nobody reads": (
        "Topic",
        {**GOOD, "writeQueueNums": 8, "readQueueNums": 4},
        "readQueueNums must be at least writeQueueNums",
    ),
    "unknown permission": (
        "Topic",
        {**GOOD, "permission": "rw"},
        'spec.permission: Unsupported value: "rw": supported values: "ReadWrite", "Read", "Write"',
    ),
    "unknown flag": (
        "Topic",
        {**GOOD, "topicSysFlag": 4},
        "spec.topicSysFlag in body should be less than or equal to 3",
    ),
    "space in the topic": (
        "Topic",
        {**GOOD, "name": "my orders"},
        "spec.name in body should match",
    ),
    "retry topic": ("Topic", {**GOOD, "name": "%RETRY%g"}, "spec.name in body should match"),
    "topic of RocketMQ": (
        "Topic",
        {**GOOD, "name": "SCHEDULE_TOPIC_XXXX"},
        "is a topic of RocketMQ's own: choose another name",
    ),
    "reserved prefix": (
        "Topic",
        {**GOOD, "name": "rmq_sys_mine"},
        "is a topic of RocketMQ's own: choose another name",
    ),
    "topic too long": (
        "Topic",
        {**GOOD, "name": "t" * 128},
        "spec.name: Too long: may not be more than 127",
    ),
    "broker twice": (
        "Topic",
        {**GOOD, "brokerNames": ["a", "a"]},
        'spec.brokerNames[1]: Duplicate value: "a"',
    ),
    "unknown deletion policy": (
        "Topic",
        {**GOOD, "deletionPolicy": "Drop"},
        'spec.deletionPolicy: Unsupported value: "Drop": supported values: "Retain", "Delete"',
    ),
    "negative retries": (
        "ConsumerGroup",
        {**GOOD, "retryMaxTimes": -1},
        "spec.retryMaxTimes in body should be greater than or equal to 0",
    ),
    "text for a boolean": (
        "ConsumerGroup",
        {**GOOD, "consumeEnable": "yes"},
        "spec.consumeEnable in body must be of type boolean",
    ),
    "group of RocketMQ": (
        "ConsumerGroup",
        {**GOOD, "name": "CID_RMQ_SYS_TRANS"},
        "is a group of RocketMQ's own: choose another name",
    ),
    "tools' group": (
        "ConsumerGroup",
        {**GOOD, "name": "TOOLS_CONSUMER"},
        "is a group of RocketMQ's own: choose another name",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_value_is_refused(kube, namespace, case):
    kind, spec, words = BAD[case]
    said = apply(kube, namespace, kind, spec, is_checked=False)
    assert words in said


@pytest.mark.parametrize("kind", ["Topic", "ConsumerGroup"])
def test_an_object_whose_name_rocketmq_does_not_allow_needs_another(kube, namespace, kind):
    said = apply(kube, namespace, kind, GOOD, name="orders.paid", is_checked=False)
    assert "metadata.name has a dot, which RocketMQ does not allow: set spec.name" in said
    apply(kube, namespace, kind, NAMED, name="orders.paid")


CHANGES = {
    "name": ({**NAMED, "name": "Other"}, "cannot be changed: create another"),
    "name removed": ({**GOOD, "clusterName": "prod"}, "name cannot be added or removed later"),
    "cluster": ({**NAMED, "clusterName": "test"}, "cannot be changed: create another"),
}


@pytest.mark.parametrize("kind", ["Topic", "ConsumerGroup"])
@pytest.mark.parametrize("case", CHANGES)
def test_a_name_cannot_be_changed(kube, namespace, kind, case):
    change, words = CHANGES[case]
    apply(kube, namespace, kind, NAMED)
    said = apply(kube, namespace, kind, change, is_checked=False)
    assert words in said


def test_defaults_are_visible(kube, namespace):
    apply(kube, namespace, "Topic", GOOD)
    apply(kube, namespace, "ConsumerGroup", GOOD)
    assert kube.objects("mqt", "orders", "-n", namespace)["spec"] == {
        "clusterName": "DefaultCluster",
        "deletionPolicy": "Retain",
        "nameServers": ["namesrv:9876"],
        "permission": "ReadWrite",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }
    assert kube.objects("mqg", "orders", "-n", namespace)["spec"] == {
        "clusterName": "DefaultCluster",
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "deletionPolicy": "Retain",
        "nameServers": ["namesrv:9876"],
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def test_kubectl_lists_and_explains(kube, namespace):
    apply(kube, namespace, "Topic", GOOD)
    apply(kube, namespace, "ConsumerGroup", GOOD)
    topics = kube.kubectl("get", "mqt", "-n", namespace).splitlines()
    assert topics[0].split() == ["NAME", "TOPIC", "QUEUES", "PERMISSION", "READY", "REASON", "AGE"]
    groups = kube.kubectl("get", "mqg", "-n", namespace).splitlines()
    assert groups[0].split() == ["NAME", "GROUP", "ENABLED", "RETRIES", "READY", "REASON", "AGE"]
    assert "Number of queues per broker group to which" in kube.kubectl(
        "explain", "mqt.spec.writeQueueNums"
    )
    assert "becomes a dead letter" in kube.kubectl("explain", "mqg.spec.retryMaxTimes")
