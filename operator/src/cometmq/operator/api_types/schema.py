# SPDX-License-Identifier: Apache-2.0
"""Structural OpenAPI schemas of msgspec types, as a CustomResourceDefinition requires them.

msgspec's own JSON schemas use references and `anyOf`, which structural schemas forbid. The text
beside the type of a field, in `Annotated[type, bounds, text]`, becomes its description.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, inspect

from cometmq.runtime.settings.fields import split_hint

Schema = dict[str, Any]

OPAQUE: Final = {"x-kubernetes-preserve-unknown-fields": True}
Opaque = Annotated[dict[str, Any], Meta(extra_json_schema=OPAQUE)]

_LENGTHS: Final[Mapping[type, tuple[str, str]]] = {
    inspect.StrType: ("minLength", "maxLength"),
    inspect.ListType: ("minItems", "maxItems"),
    inspect.DictType: ("minProperties", "maxProperties"),
}


def rule(cel: str, message: str, **more: str) -> dict[str, Any]:
    """Return a validation rule in CEL; `message` states the requirement."""
    return {"rule": cel, "message": message, **more}


def rules(*each: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the additions to a schema: rules, and other keywords."""
    return {"x-kubernetes-validations": list(each), **more}


def schema_of(type_: type[msgspec.Struct]) -> Schema:
    """Return the schema of a struct, with its defaults; raise TypeError for other types."""
    return _schema(inspect.type_info(type_))


def _schema(info: inspect.Type) -> Schema:
    extra: Mapping[str, Any] = {}
    if isinstance(info, inspect.Metadata):
        extra, info = info.extra_json_schema or {}, info.type
    described = {key: extra[key] for key in ("description",) if key in extra}
    schema = {**described, **_plain(info)}
    return schema | {key: value for key, value in extra.items() if key not in described}


def _plain(info: inspect.Type) -> Schema:
    match info:
        case inspect.StructType():
            return _struct(info)
        case inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [one.value for one in cls]}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType(ge=low, le=high):
            return _given({"type": "integer", "format": "int64", "minimum": low, "maximum": high})
        case inspect.StrType(pattern=pattern):
            return _given({"type": "string", **_bounds(info), "pattern": pattern})
        case inspect.ListType(item_type=item):
            return _given({"type": "array", **_bounds(info), "items": _schema(item)})
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object"}
        case inspect.DictType(value_type=value):
            more = {"additionalProperties": _schema(value)}
            return _given({"type": "object", **_bounds(info), **more})
        case inspect.UnionType(types=types):
            (one,) = [each for each in types if not isinstance(each, inspect.NoneType)]
            return _schema(one)
        case _:
            raise TypeError(f"a structural schema cannot express {info}")


def _bounds(info: Any) -> Schema:
    least, most = _LENGTHS[type(info)]
    return {least: info.min_length, most: info.max_length}


def _given(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if value is not None}


def _struct(info: inspect.StructType) -> Schema:
    properties = {}
    hints = get_type_hints(info.cls, include_extras=True)
    for field in info.fields:
        schema = _schema(field.type)
        texts = [it for it in split_hint(hints[field.name])[1] if isinstance(it, str)]
        if texts:
            schema = {"description": texts[-1], **schema}
        default = _default(field)
        if default is not None and "default" not in schema:
            schema["default"] = default
        properties[field.encode_name] = schema
    required = [field.encode_name for field in info.fields if field.required]
    return {
        "type": "object",
        **({"required": required} if required else {}),
        "properties": properties,
    }


def _default(field: inspect.Field) -> Any:
    """Return a field's default as JSON; None if it has none.

    An object's default includes the defaults of its fields, because the API server validates an
    object's default before it adds defaults of fields. Empty maps and lists are left out, to keep
    the output of GET short.
    """
    if field.default is NODEFAULT or field.default is None:
        return None
    return _filled(msgspec.to_builtins(field.default))


def _filled(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    parts = {key: _filled(part) for key, part in value.items()}
    return {key: part for key, part in parts.items() if part not in (None, [], {})}


def without_defaults(schema: Schema) -> Schema:
    """Return a schema without any defaults, for fields that the operator itself writes."""
    return {
        key: {name: without_defaults(field) for name, field in value.items()}
        if key == "properties"
        else without_defaults(value)
        if key == "items"
        else value
        for key, value in schema.items()
        if key != "default"
    }
