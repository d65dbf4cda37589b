# SPDX-License-Identifier: Apache-2.0
"""Generate a page of docs/reference from the schema of a custom resource."""

from collections.abc import Iterator
from typing import Any, Final

from cometmq.operator.api_types.broker_group import API_VERSION
from cometmq.operator.api_types.crd import Definition, definition

from .markdown import code, notice, table

HEAD: Final = ("field", "value", "default", "meaning")


def page(one: Definition) -> str:
    """Return the page of all fields, rules and columns of a kind."""
    (version,) = definition(one)["spec"]["versions"]
    short = one.short_name
    root = version["schema"]["openAPIV3Schema"]
    lines = [
        f"# {one.kind}, {API_VERSION}", "", notice(one.kind.lower()), "", one.description, "",
        f"`kubectl explain {short}.spec --recursive` prints the same descriptions.", "",
    ]  # fmt: skip
    for name in ("spec", "status"):
        schema = root["properties"][name]
        lines += [f"## {name}", "", schema["description"], ""]
        lines += table(HEAD, _rows(schema, name, ""))
        lines.append("")
    lines += [
        "## Rules",
        "",
        "The API server rejects an object that violates one of these rules.",
        "",
    ]
    lines += table(("where", "rule"), sorted(set(_rules(root, ""))))
    lines += ["", f"## Columns of `kubectl get {short}`", ""]
    wide = {True: "with `-o wide`", False: ""}
    lines += table(
        ("column", "field", "shown"),
        (
            (column["name"], code(column["jsonPath"]), wide["priority" in column])
            for column in one.columns
        ),
    )
    return "\n".join(lines) + "\n"


def _rows(schema: dict[str, Any], path: str, parent: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        own = f"{parent}.{name}" if parent else name
        is_required = name in schema.get("required", ())
        default = "required" if is_required else _default(field)
        yield code(own), _value(field), default, field.get("description", "")
        inner = field["items"] if field["type"] == "array" else field
        yield from _rows(inner, path, f"{own}[]" if field["type"] == "array" else own)


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if value is None or isinstance(value, dict | list):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def _value(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(field["enum"])
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None:
        return f"an integer {low}..{high}"
    names = {"string": "text", "boolean": "true or false", "integer": "an integer"}
    names |= {"array": "list", "object": "map" if "properties" not in field else "object"}
    pattern = f" matching `{field['pattern']}`" if "pattern" in field else ""
    return names[field["type"]] + pattern


def _rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield (
            code(f"{path}{rule.get('fieldPath', '')}".lstrip(".") or "metadata.name"),
            rule["message"],
        )
    for name, field in schema.get("properties", {}).items():
        yield from _rules(field, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")
