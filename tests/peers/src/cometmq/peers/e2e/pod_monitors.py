# SPDX-License-Identifier: Apache-2.0
"""Translates PodMonitors into scrape configurations, as the Prometheus operator does.

Pods are scraped through the API server, because their addresses cannot be reached from outside the
cluster. Fields that the charts do not use are refused, so none is ignored silently.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cometmq.peers.e2e.pod_targets import META, Cluster, label_name
from cometmq.peers.errors import PeerError

_POD: Final = f"{META}_pod"
_RELABELING: Final = {
    "sourceLabels": "source_labels",
    "targetLabel": "target_label",
    "regex": "regex",
    "replacement": "replacement",
    "action": "action",
}

Rule = dict[str, Any]


def scrape_configs(
    monitors: Iterable[Mapping[str, Any]], namespace: str, cluster: Cluster
) -> list[dict[str, Any]]:
    """Return the scrape configurations of PodMonitors in a namespace."""
    return [
        _scrape_config(monitor, endpoint, namespace, cluster, number)
        for monitor in monitors
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


def _scrape_config(
    monitor: Mapping[str, Any],
    endpoint: Mapping[str, Any],
    namespace: str,
    cluster: Cluster,
    number: int,
) -> dict[str, Any]:
    spec, name = monitor["spec"], monitor["metadata"]["name"]
    _refuse_others(spec, "jobLabel", "namespaceSelector", "podMetricsEndpoints", "selector")
    _refuse_others(endpoint, "interval", "path", "port", "relabelings")
    url = cluster.url(_namespaces(spec, namespace))
    return {
        "job_name": f"podMonitor/{namespace}/{name}/{number}",
        "scrape_interval": endpoint["interval"],
        "metrics_path": endpoint["path"],
        "http_sd_configs": [{"url": url, "refresh_interval": endpoint["interval"]}],
        "relabel_configs": [
            *_selected(spec["selector"], endpoint["port"]),
            *_labels(spec, endpoint["port"], f"{namespace}/{name}"),
            *(_relabeling(one) for one in endpoint.get("relabelings", ())),
            *_through(cluster.api),
        ],
    }


def _namespaces(spec: Mapping[str, Any], own: str) -> list[str]:
    """Return the namespaces in which pods are selected; empty stands for all."""
    selector = spec.get("namespaceSelector", {})
    _refuse_others(selector, "any", "matchNames")
    return [] if selector.get("any") else list(selector.get("matchNames", (own,)))


def _selected(selector: Mapping[str, Any], port: str) -> list[Rule]:
    """Keep the ports of this name in the pods with these labels that have not ended."""
    _refuse_others(selector, "matchLabels")
    wanted = {label_name(key): value for key, value in selector["matchLabels"].items()}
    wanted[f"{_POD}_container_port_name"] = port
    ended = {
        "action": "drop", "source_labels": [f"{_POD}_phase"], "regex": "(Failed|Succeeded)",
    }  # fmt: skip
    kept = [
        {"action": "keep", "source_labels": [label], "regex": re.escape(value)}
        for label, value in wanted.items()
    ]
    return [ended, *kept]


def _labels(spec: Mapping[str, Any], port: str, name: str) -> list[Rule]:
    """Set the labels that the Prometheus operator sets; the job defaults to the monitor's name."""
    copied = {
        "namespace": f"{META}_namespace", "container": f"{_POD}_container_name",
        "pod": f"{_POD}_name", "instance": "__address__",
    }  # fmt: skip
    rules: list[Rule] = [
        {"source_labels": [source], "target_label": target} for target, source in copied.items()
    ]
    rules += [
        {"target_label": "job", "replacement": name},
        {"target_label": "endpoint", "replacement": port},
    ]
    if label := spec.get("jobLabel"):
        rules.append({"source_labels": [label_name(label)], "target_label": "job", "regex": "(.+)"})
    return rules


def _relabeling(relabeling: Mapping[str, Any]) -> Rule:
    _refuse_others(relabeling, *_RELABELING)
    return {_RELABELING[key]: value for key, value in relabeling.items()}


def _through(api: str) -> list[Rule]:
    """Replace the address of the pod by its path on the API server."""
    parts = [f"{META}_namespace", f"{_POD}_name", f"{_POD}_container_port_number"]
    return [
        {
            "source_labels": [*parts, "__metrics_path__"],
            "regex": "(.+);(.+);(.+);(.+)",
            "replacement": "/api/v1/namespaces/$1/pods/$2:$3/proxy$4",
            "target_label": "__metrics_path__",
        },
        {"target_label": "__address__", "replacement": api},
    ]


def _refuse_others(found: Mapping[str, Any], *known: str) -> None:
    if others := sorted(found.keys() - set(known)):
        raise PeerError(f"the translation of PodMonitors lacks {', '.join(others)}")
