# SPDX-License-Identifier: Apache-2.0
"""Generate the schema of each Helm chart and a page of its values, from comments in values.yaml.

Each value has a comment `# -- (type) description`; TYPES lists the types.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from .markdown import code, notice

HELM: Final = Path(__file__).resolve().parents[2] / "deploy/helm"
GROUP: Final = "brokerGroupDefaults"

_COMMENT: Final = re.compile(r"\s*# -- \((?P<type>.+?)\) (?P<text>.+)")
_KEY: Final = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]+):")
_RANGE: Final = re.compile(r"integer (\d+)\.\.(\d+)")
_NAME: Final = "^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$"
_SETTING: Final = {"type": ["string", "integer", "number", "boolean"], "pattern": r"^[^\n\r]*$"}
"""The value of a setting. A line break in it would begin another setting."""
_LABEL: Final = {
    "type": "string",
    "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
    "maxLength": 63,
}
_QUANTITY: Final = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P|m)?$"
_QUANTITIES: Final = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "number"]},
}

TYPES: Final[dict[str, dict[str, Any]]] = {
    "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    "boolean": {"type": "boolean"},
    "brokerIds": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "endpoints": {
        "type": "array",
        "items": {"type": "string", "pattern": r"^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"},
    },
    "environment": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
        },
    },
    "filled": {"type": "string", "minLength": 1},
    "labels": {"type": "object", "additionalProperties": _LABEL},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "maps": {"type": "array", "items": {"type": "object"}},
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
    "object": {
        "type": "string",
        "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
        "maxLength": 253,
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
    "tag": {"type": "string", "pattern": "^([A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?$"},
}
"""JSON schemas of the types in comments; `integer 1..9`, `string /regex/` and `a|b|c` also work."""


class Value(NamedTuple):
    """A chart value: its path, its comment, and its default."""

    path: tuple[str, ...]
    type: str
    text: str
    default: Any


class Chart(NamedTuple):
    """A chart in a folder of deploy/helm."""

    name: str

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
            leaf["additionalProperties"] = _SETTING
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


def page(chart: Chart) -> str:
    """Render the table of all values."""
    rows = [
        f"| `{'.'.join(one.path)}` | {_cell(_shown(one.type))} | `{_cell(json.dumps(one.default))}`"
        f" | {_cell(one.text)} |"
        for one in values(chart)
    ]
    head = f"# Values of the chart {chart.name}\n\n{notice(f'helm-{chart.name}')}\n\n"
    return head + _TABLE + "\n".join(rows) + "\n"


def _shown(kind: str) -> str:
    if kind.startswith("string /"):  # as code: Markdown would read its brackets
        return f"text {code(kind.removeprefix('string '))}"
    return kind.replace("integer ", "").replace("|", " or ")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_TABLE: Final = """\
Invalid values are rejected before anything is installed, and the error names their path.

| value | type | default | meaning |
|---|---|---|---|
"""

SUITE: Final = Chart("cometmq")
OPERATOR: Final = Chart("cometmq-operator")
