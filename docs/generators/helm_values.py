# SPDX-License-Identifier: Apache-2.0
"""Generate the README and the schema of each Helm chart from the comments of its values.yaml.

Each value has a comment `# -- (type) description`; TYPES lists the types.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

HELM: Final = Path(__file__).resolve().parents[2] / "deploy/helm"
GROUP: Final = "brokerGroupDefaults"

_COMMENT: Final = re.compile(r"\s*# -- \((?P<type>.+?)\) (?P<text>.+)")
_KEY: Final = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]+):")
_RANGE: Final = re.compile(r"integer (\d+)\.\.(\d+)")
_NAME: Final = "^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$"
_SCALAR: Final = {"type": ["string", "integer", "number", "boolean"]}
_QUANTITY: Final = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P|m)?$"
_QUANTITIES: Final = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "number"]},
}

TYPES: Final[dict[str, dict[str, Any]]] = {
    "boolean": {"type": "boolean"},
    "brokerIds": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "endpoints": {
        "type": "array",
        "items": {"type": "string", "pattern": r"^[A-Za-z0-9.-]+:[0-9]{1,5}$"},
    },
    "filled": {"type": "string", "minLength": 1},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "name": {"type": "string", "pattern": "^[A-Za-z0-9._|%-]+$", "maxLength": 127},
    "namespaces": {
        "type": "array",
        "items": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
    },
    "nodePort": {"type": "integer", "minimum": 0, "maximum": 65535},
    "nodePorts": {
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": 65535},
    },
    "quantity": {"type": ["string", "integer"], "pattern": _QUANTITY},
    "resources": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"requests": _QUANTITIES, "limits": _QUANTITIES},
    },
    "schedule": {"type": "string", "pattern": r"^(@[a-z]+|(\S+\s+){4}\S+)$"},
    "string": {"type": "string"},
    "strings": {"type": "array", "items": {"type": "string", "minLength": 1}},
}
"""JSON schemas of the types in comments; `integer 1..9`, `string /regex/` and `a|b|c` also work."""


class Value(NamedTuple):
    """A chart value: its path, its comment, and its default."""

    path: tuple[str, ...]
    type: str
    text: str
    default: Any


class Chart(NamedTuple):
    """A chart in a folder of deploy/helm, and the text above the table in its README."""

    name: str
    head: str

    @property
    def readme(self) -> Path:
        return HELM / self.name / "README.md"

    @property
    def schema(self) -> Path:
        return HELM / self.name / "values.schema.json"


def values(chart: Chart) -> list[Value]:
    """Return all values in the order of the file; raise ValueError if one has no comment."""
    text = (HELM / chart.name / "values.yaml").read_text(encoding="utf-8")
    return list(_parsed(text.splitlines(), yaml.safe_load(text)))


def _parsed(lines: list[str], defaults: dict[str, Any]) -> Iterator[Value]:
    path: list[str] = []
    comment: re.Match[str] | None = None
    for line in lines:
        found = _KEY.match(line)
        if found is None:
            comment = _COMMENT.fullmatch(line) or comment
            continue
        depth = len(found["indent"]) // 2
        path[depth:] = [found["key"]]
        if comment is not None:
            yield Value(tuple(path), comment["type"], comment["text"], _at(defaults, path))
        elif not isinstance(_at(defaults, path), dict):
            raise ValueError(f"{'.'.join(path)} in values.yaml has no comment `# -- (type) text`")
        comment = None


def _at(defaults: Any, path: list[str]) -> Any:
    for key in path:
        defaults = defaults[key]
    return defaults


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a type named in a comment."""
    if found := _RANGE.fullmatch(kind):
        return {"type": "integer", "minimum": int(found[1]), "maximum": int(found[2])}
    if kind.startswith("string /"):
        return {"type": "string", "pattern": f"^{kind[8:-1]}$"}
    if kind == "brokerGroups":
        return {"type": "array", "items": {"$ref": "#/definitions/brokerGroup"}}
    if "|" in kind:
        return {"type": "string", "enum": kind.split("|")}
    return TYPES[kind]


def schema(chart: Chart) -> str:
    """Render values.schema.json."""
    root = _object()
    for value in values(chart):
        place = root
        for key in value.path[:-1]:
            place = place["properties"].setdefault(key, _object())
        leaf = {**schema_of(value.type), "description": value.text}
        if value.path[-1] == "config":
            leaf["additionalProperties"] = _SCALAR
        place["properties"][value.path[-1]] = leaf
    root["properties"]["global"] = {"type": "object"}
    root = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"Values of the chart {chart.name}; generated by docs/generate.py",
        **root,
    }
    if GROUP in root["properties"]:
        group = json.loads(json.dumps(root["properties"][GROUP]))
        name = {"type": "string", "pattern": _NAME, "description": "The brokerName of the group."}
        group["properties"]["name"] = name
        group["required"] = ["name"]
        root["definitions"] = {"brokerGroup": group}
    return json.dumps(root, indent=2) + "\n"


def _object() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def readme(chart: Chart) -> str:
    """Render README.md."""
    rows = [
        f"| `{'.'.join(one.path)}` | {_cell(_shown(one.type))} | `{_cell(json.dumps(one.default))}`"
        f" | {_cell(one.text)} |"
        for one in values(chart)
    ]
    return chart.head + _TABLE + "\n".join(rows) + "\n"


def _shown(kind: str) -> str:
    return kind.replace("integer ", "").replace("|", " or ").replace("string /", "text /")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_TABLE: Final = """\
## Values

Invalid values are rejected before anything is installed, and the error names their path.

| value | type | default | meaning |
|---|---|---|---|
"""

SUITE: Final = Chart(
    "cometmq",
    """\
# Helm chart of CometMQ

Generated by `docs/generate.py helm-readme`: do not edit.

The chart installs name servers, broker groups, the txn-checker and, optionally, the exporter and
Spark lag reports.

```console
$ make images BASE_IMAGE=python:3.11-slim-bookworm
$ helm install mq deploy/helm/cometmq
$ helm test mq
```

The [guide](../../../docs/guides/kubernetes.md) leads from an empty cluster to production. Examples:
[one broker](ci/one-broker-values.yaml), [groups that fail over](ci/failover-values.yaml), [name
servers for groups managed by the operator](ci/operator-values.yaml), [TLS, accounts and external
clients](ci/secured-values.yaml), [lag reports](ci/lag-values.yaml), [lag reports with Spark
executors](ci/lag-executors-values.yaml).

""",
)

OPERATOR: Final = Chart(
    "cometmq-operator",
    """\
# Helm chart of the operator

Generated by `docs/generate.py helm-operator-readme`: do not edit.

The chart installs the operator, which runs
BrokerGroups and maintains Topics and ConsumerGroups
([guide](../../../docs/guides/operator.md)), and the definitions of all three.
`kubectl explain brokergroup.spec` shows the fields.

```console
$ make images TARGETS="suite operator" BASE_IMAGE=python:3.11-slim-bookworm
$ helm install operator deploy/helm/cometmq-operator --namespace cometmq-operator --create-namespace
```

The [guide](../../../docs/guides/operator.md) shows how to
create groups. Example: [one namespace](ci/one-namespace-values.yaml), outside which the operator
has no rights.

The definitions are upgraded with the release, but they are kept when the release is deleted,
because Kubernetes would delete all their objects too. To install the chart again under another name
or in another namespace, set `crds.install: false`, or let the new release own the definitions:

```console
$ kubectl annotate --overwrite crd \\
    brokergroups.cometmq.io topics.cometmq.io consumergroups.cometmq.io \\
    meta.helm.sh/release-name=NAME meta.helm.sh/release-namespace=NAMESPACE
```

""",
)
