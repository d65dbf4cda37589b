# SPDX-License-Identifier: Apache-2.0
"""The examples of autoscaling agree with each other."""

import yaml

from cometmq.peers.paths import ROOT
from cometmq.peers.prometheus.autoscaling import (
    GROUP,
    TOPIC,
    autoscaler,
    consumers,
    lag_queries,
    scaled_object,
)


def declared(kind):
    """Return the spec of the Topic or the ConsumerGroup of the examples."""
    text = (ROOT / "deploy/examples/topics.yaml").read_text(encoding="utf-8")
    (found,) = (one for one in yaml.safe_load_all(text) if one["kind"] == kind)
    return {"name": found["metadata"]["name"], **found["spec"]}


def test_both_examples_scale_the_consumers_of_the_declared_group():
    deployment = consumers()
    name = deployment["metadata"]["name"]
    assert autoscaler()["spec"]["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"], "kind": deployment["kind"], "name": name,
    }  # fmt: skip
    assert scaled_object()["spec"]["scaleTargetRef"] == {"name": name}  # by default a Deployment
    assert "replicas" not in deployment["spec"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["consume", TOPIC, "--group", GROUP]
    assert (declared("Topic")["name"], declared("ConsumerGroup")["name"]) == (TOPIC, GROUP)
    assert [container["env"][0]["value"]] == declared("Topic")["nameServers"]


def test_no_example_creates_more_members_than_queues():
    queues = declared("Topic")["writeQueueNums"]
    assert autoscaler()["spec"]["maxReplicas"] == queues
    assert scaled_object()["spec"]["maxReplicaCount"] == queues


def test_both_examples_have_the_same_threshold_and_behavior():
    keda, other = scaled_object()["spec"], autoscaler()["spec"]
    (metric,), (trigger,) = other["metrics"], keda["triggers"]
    target = metric["external"]["target"]
    assert target == {"type": "AverageValue", "averageValue": trigger["metadata"]["threshold"]}
    config = keda["advanced"]["horizontalPodAutoscalerConfig"]
    assert config["behavior"] == other["behavior"]


def test_keda_does_not_take_missing_figures_for_an_empty_backlog():
    (trigger,) = scaled_object()["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_queries_name_the_topic_and_the_group():
    keda, adapter = lag_queries("T", "g")
    assert 'group="g",topic=~"T|%RETRY%g"}' in keda.expr
    assert '_messages{cluster="DefaultCluster",group="g"}' in adapter.expr
    assert "<<" not in adapter.expr
