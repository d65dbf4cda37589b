# SPDX-License-Identifier: Apache-2.0
"""PodMonitors become scrape configurations that select the same pods and set the same labels."""

import pytest

from cometmq.peers.e2e.pod_monitors import scrape_configs
from cometmq.peers.e2e.pod_targets import Cluster, target_groups
from cometmq.peers.errors import PeerError

CLUSTER = Cluster("127.0.0.1:1", "127.0.0.1:2")


def config(endpoint=(), **spec):
    monitor = {
        "metadata": {"name": "mq"},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": "mq.broker"}},
            "podMetricsEndpoints": [
                {"port": "http", "path": "/metrics", "interval": "5s", **dict(endpoint)}
            ],
            **spec,
        },
    }
    (found,) = scrape_configs([monitor], "prod", CLUSTER)
    return found


def rules(found, **fields):
    """Return the rules with these fields."""
    return [one for one in found["relabel_configs"] if fields.items() <= one.items()]


def url(found):
    (discovery,) = found["http_sd_configs"]
    return discovery["url"].removeprefix(f"http://{CLUSTER.discovery}/?")


def test_pods_are_selected_by_labels_port_and_namespace():
    found = config()
    assert (found["scrape_interval"], found["metrics_path"]) == ("5s", "/metrics")
    kept = {one["source_labels"][0]: one["regex"] for one in rules(found, action="keep")}
    assert kept == {
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": r"mq\.broker",
        "__meta_kubernetes_pod_container_port_name": "http",
    }
    assert url(found) == "namespace=prod"
    two = config(namespaceSelector={"matchNames": ["a", "b"]})
    assert url(two) == "namespace=a&namespace=b"
    assert url(config(namespaceSelector={"any": True})) == ""


def test_the_last_rule_for_the_job_wins():
    """The name of the PodMonitor is the default, then the label of the pod, then relabelings."""
    relabeling = {"sourceLabels": ["x"], "targetLabel": "job", "replacement": "cometmq-$1"}
    found = config({"relabelings": [relabeling]}, jobLabel="app")
    name, label, last = rules(found, target_label="job")
    assert name["replacement"] == "prod/mq"
    assert label["source_labels"] == ["__meta_kubernetes_pod_label_app"]
    assert last["replacement"] == "cometmq-$1"


def test_pods_are_scraped_through_the_api_server():
    path, address = config()["relabel_configs"][-2:]
    assert path["replacement"] == "/api/v1/namespaces/$1/pods/$2:$3/proxy$4"
    assert address == {"target_label": "__address__", "replacement": CLUSTER.api}


def test_unknown_fields_are_refused():
    with pytest.raises(PeerError, match="sampleLimit"):
        config(sampleLimit=5)
    with pytest.raises(PeerError, match="scheme"):
        config({"scheme": "https"})


def test_every_declared_port_of_a_pod_is_a_target():
    containers = [
        {
            "name": "broker",
            "ports": [{"name": "http", "containerPort": 8080}, {"containerPort": 1}],
        },
        {"name": "other"},
    ]
    pod = {
        "metadata": {"name": "orders-0", "namespace": "prod", "labels": {"a.b/c-d": "e"}},
        "spec": {"containers": containers},
        "status": {"podIP": "10.0.0.1", "phase": "Running"},
    }
    waiting = {**pod, "status": {"phase": "Pending"}}
    named, unnamed = target_groups([pod, waiting])
    assert named["targets"] == ["10.0.0.1:8080"]
    assert named["labels"] == {
        "__meta_kubernetes_namespace": "prod",
        "__meta_kubernetes_pod_name": "orders-0",
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_label_a_b_c_d": "e",
        "__meta_kubernetes_pod_container_name": "broker",
        "__meta_kubernetes_pod_container_port_name": "http",
        "__meta_kubernetes_pod_container_port_number": "8080",
    }
    assert unnamed["labels"]["__meta_kubernetes_pod_container_port_name"] == ""
