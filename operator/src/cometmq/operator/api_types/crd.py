# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinitions; `make generate` writes them to deploy/crds."""

from typing import Any, Final

import msgspec
import yaml

from cometmq.operator.api_types.broker_group import (
    GROUP,
    KIND,
    PLURAL,
    ROOT_RULES,
    SPEC_RULES,
    VERSION,
    Spec,
)
from cometmq.operator.api_types.schema import Schema, schema_of, without_defaults
from cometmq.operator.api_types.status import GroupStatus
from cometmq.operator.api_types.topics_and_groups import CONSUMER_GROUP as CONSUMER_GROUP_KIND
from cometmq.operator.api_types.topics_and_groups import (
    GROUP_ROOT_RULES,
    GROUP_RULES,
    PLURALS,
    TOPIC_ROOT_RULES,
    TOPIC_RULES,
    ConsumerGroupSpec,
    DeclaredStatus,
    TopicSpec,
)
from cometmq.operator.api_types.topics_and_groups import TOPIC as TOPIC_KIND


def _column(name: str, path: str, type_: str = "string", priority: int = 0) -> dict[str, Any]:
    column = {"name": name, "type": type_, "jsonPath": path}
    return {**column, "priority": priority} if priority else column


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the CustomResourceDefinitions."""

    kind: str
    noun: str
    """The noun for an object in descriptions."""
    plural: str
    short_name: str
    module: str
    """The module with the types."""
    description: str
    spec: type[msgspec.Struct]
    spec_rules: tuple[dict[str, Any], ...]
    root_rules: tuple[dict[str, Any], ...]
    status: type[msgspec.Struct]
    columns: tuple[dict[str, Any], ...]
    subresources: dict[str, Any] = {}


BROKER_GROUP: Final = Definition(
    kind=KIND,
    noun="group",
    plural=PLURAL,
    short_name="bg",
    module="cometmq.operator.api_types.broker_group",
    description="A BrokerGroup is one group of CometMQ brokers, run as pods: a master, and slaves"
    " with copies of all its messages. When the master is lost, the operator promotes an in-sync"
    " slave, and no acknowledged message is lost. A cluster consists of one or more groups.",
    spec=Spec,
    spec_rules=SPEC_RULES,
    root_rules=ROOT_RULES,
    status=GroupStatus,
    columns=(
        _column("Master", ".status.master"),
        _column("Epoch", ".status.epoch", "integer"),
        _column("In sync", ".status.inSyncCount", "integer"),
        _column("Ready", ".status.readyReplicas", "integer"),
        _column("Replicas", ".spec.replicas", "integer"),
        _column("Phase", ".status.phase"),
        _column("Age", ".metadata.creationTimestamp", "date"),
        _column("Image", ".spec.image.name", priority=1),
        _column("Reason", ".status.conditions[?(@.type=='Ready')].message", priority=1),
    ),
    subresources={
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    },
)

_READY: Final = ".status.conditions[?(@.type=='Ready')]"
_COMMON: Final = (
    _column("Ready", f"{_READY}.status"),
    _column("Reason", f"{_READY}.reason"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    _column("Cluster", ".spec.clusterName", priority=1),
    _column("Message", f"{_READY}.message", priority=1),
)

TOPIC: Final = Definition(
    kind=TOPIC_KIND,
    noun="topic",
    plural=PLURALS[TOPIC_KIND],
    short_name="mqt",
    module="cometmq.operator.api_types.topics_and_groups",
    description="A Topic declares one topic of a cluster: its queues and permission. The operator"
    " creates it on the brokers, undoes manual changes, and removes queues only once their messages"
    " have been consumed. By default, deleting the object leaves the topic as it is.",
    spec=TopicSpec,
    spec_rules=TOPIC_RULES,
    root_rules=TOPIC_ROOT_RULES,
    status=DeclaredStatus,
    columns=(
        _column("Topic", ".status.name"),
        _column("Queues", ".spec.writeQueueNums", "integer"),
        _column("Permission", ".spec.permission"),
        *_COMMON,
    ),
)

CONSUMER_GROUP: Final = Definition(
    kind=CONSUMER_GROUP_KIND,
    noun="consumer group",
    plural=PLURALS[CONSUMER_GROUP_KIND],
    short_name="mqg",
    module="cometmq.operator.api_types.topics_and_groups",
    description="A ConsumerGroup declares one consumer group of a cluster: whether it may consume,"
    " and how its messages are redelivered. The operator creates it on the brokers and undoes"
    " manual changes. By default, deleting the object leaves the group as it is.",
    spec=ConsumerGroupSpec,
    spec_rules=GROUP_RULES,
    root_rules=GROUP_ROOT_RULES,
    status=DeclaredStatus,
    columns=(
        _column("Group", ".status.name"),
        _column("Enabled", ".spec.consumeEnable", "boolean"),
        _column("Retries", ".spec.retryMaxTimes", "integer"),
        *_COMMON,
    ),
)

DEFINITIONS: Final = (BROKER_GROUP, TOPIC, CONSUMER_GROUP)


def _root(one: Definition) -> Schema:
    spec = {
        "description": f"The desired state of the {one.noun}.",
        **schema_of(one.spec),
        "x-kubernetes-validations": list(one.spec_rules),
    }
    status = {
        "description": f"The state of the {one.noun} as last seen by the operator.",
        **without_defaults(schema_of(one.status)),
    }
    return {
        "description": one.description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": list(one.root_rules),
    }


def definition(one: Definition) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{one.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": one.kind,
                "listKind": f"{one.kind}List",
                "plural": one.plural,
                "singular": one.kind.lower(),
                "shortNames": [one.short_name],
                "categories": ["cometmq"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}, **one.subresources},
                    "additionalPrinterColumns": list(one.columns),
                    "schema": {"openAPIV3Schema": _root(one)},
                }
            ],
        },
    }


def as_yaml(one: Definition) -> str:
    """Return a definition as the file that is applied to clusters."""
    head = (
        "# SPDX-License-Identifier: Apache-2.0\n"
        f"# Generated by `docs/generate.py crd` from {one.module}: do not edit.\n"
    )
    return head + str(yaml.dump(definition(one), Dumper=_Dumper, sort_keys=False, width=100))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
    """Writes repeated rules in full, because readers of a CRD do not expect YAML anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
