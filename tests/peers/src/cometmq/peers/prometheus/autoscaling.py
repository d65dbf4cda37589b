# SPDX-License-Identifier: Apache-2.0
"""Reads the examples of autoscaling, and returns the PromQL that the autoscalers run."""

import re
from typing import Any, Final

import yaml

from cometmq.peers.errors import PeerError
from cometmq.peers.paths import ROOT
from cometmq.peers.prometheus.queries import Query

FOLDER: Final = ROOT / "deploy/examples/autoscaling"
CONSUMERS: Final = FOLDER / "consumers.yaml"
SCALED_OBJECT: Final = FOLDER / "keda.yaml"
AUTOSCALER: Final = FOLDER / "hpa.yaml"
ADAPTER_VALUES: Final = FOLDER / "prometheus-adapter-values.yaml"
TOPIC: Final = "Orders_Paid"
GROUP: Final = "billing"
_FIELD: Final = re.compile(r"<<\.(\w+)>>")


def scaled_object() -> Any:
    return yaml.safe_load(SCALED_OBJECT.read_text(encoding="utf-8"))


def autoscaler(topic: str = TOPIC, group: str = GROUP) -> Any:
    """Return the HorizontalPodAutoscaler, renamed for another topic and group."""
    return yaml.safe_load(renamed(AUTOSCALER.read_text(encoding="utf-8"), topic, group))


def consumers(topic: str = TOPIC, group: str = GROUP) -> Any:
    """Return the Deployment, renamed for another topic and group."""
    return yaml.safe_load(renamed(CONSUMERS.read_text(encoding="utf-8"), topic, group))


def adapter_config() -> dict[str, Any]:
    """Return the configuration file that the adapter's chart writes for the values."""
    rules = yaml.safe_load(ADAPTER_VALUES.read_text(encoding="utf-8"))["rules"]
    if rules.keys() != {"default", "external"} or rules["default"]:
        raise PeerError(f"the configuration has other rules than external ones: {rules}")
    return {"externalRules": rules["external"]}


def lag_queries(topic: str, group: str) -> list[Query]:
    """Return the query of each example for a topic and a group."""
    return [
        Query(SCALED_OBJECT.name, renamed(_keda_query(), topic, group)),
        Query(AUTOSCALER.name, _adapter_query(autoscaler(topic, group))),
    ]


def renamed(text: str, topic: str, group: str) -> str:
    """Replace the topic and the group of the examples, which the text must contain."""
    if not re.search(rf"\b{GROUP}\b", text):
        raise PeerError(f"{GROUP} does not occur in {text}")
    return re.sub(rf"\b{GROUP}\b", group, text.replace(TOPIC, topic))


def _keda_query() -> str:
    (trigger,) = scaled_object()["spec"]["triggers"]
    query: str = trigger["metadata"]["query"]
    return query


def _adapter_query(found: Any) -> str:
    """Fill in the template of the adapter's rule for the metric of an autoscaler."""
    (metric,) = found["spec"]["metrics"]
    wanted = metric["external"]["metric"]
    (rule,) = adapter_config()["externalRules"]
    if not rule["seriesQuery"].startswith(f"{wanted['name']}{{"):
        raise PeerError(f"no rule for {wanted['name']}")
    matchers = (f'{key}="{value}"' for key, value in wanted["selector"]["matchLabels"].items())
    fields = {"Series": wanted["name"], "LabelMatchers": ",".join(matchers)}
    query: str = rule["metricsQuery"]
    return _FIELD.sub(lambda field: fields[field[1]], query)
