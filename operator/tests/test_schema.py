# SPDX-License-Identifier: Apache-2.0
"""The CRDs are structural schemas with descriptions, bounds and defaults.

`tests/operator` shows that a real API server accepts them.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest
import yaml
from msgspec import Meta

from cometmq.client.option_checks import parse_addresses
from cometmq.operator.api_types.broker_group import OWNED_SETTINGS, Spec
from cometmq.operator.api_types.crd import (
    BROKER_GROUP,
    CONSUMER_GROUP,
    DEFINITIONS,
    TOPIC,
    as_yaml,
    definition,
)
from cometmq.operator.api_types.schema import schema_of

FOLDER = Path(__file__).parents[2] / "deploy/crds"
every_kind = pytest.mark.parametrize("one", DEFINITIONS, ids=lambda one: one.kind)


def root(one=BROKER_GROUP):
    (version,) = definition(one)["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def fields(schema, path=""):
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from fields(schema["additionalProperties"], f"{path}{{}}")


@every_kind
def test_the_committed_file_is_current(one):
    text = (FOLDER / f"{one.plural}.yaml").read_text(encoding="utf-8")
    assert text == as_yaml(one), "run `make generate`"
    assert yaml.safe_load(text) == definition(one)


@every_kind
def test_every_field_is_described_in_sentences(one):
    plain = {"", ".apiVersion", ".kind", ".metadata"}
    named = {
        path: schema
        for path, schema in fields(root(one))
        if path not in plain and path[-1] not in "]}"
    }
    assert len(named) > (60 if one is BROKER_GROUP else 20)
    bad = [
        path
        for path, schema in named.items()
        if not schema.get("description", "")[:1].isupper()
        or not schema["description"].endswith((".", "?"))
    ]
    assert bad == []


@every_kind
def test_what_people_write_is_bounded_so_that_rules_have_a_bounded_cost(one):
    spec = dict(fields(root(one)["properties"]["spec"]))
    opaque = "x-kubernetes-preserve-unknown-fields"
    unbounded = [
        path
        for path, schema in spec.items()
        if (schema["type"] == "array" and "maxItems" not in schema)
        or (schema["type"] == "string" and not ({"maxLength", "enum"} & schema.keys()))
        or (
            schema["type"] == "object"
            and not ({"properties", "maxProperties", opaque} & schema.keys())
        )
    ]
    assert unbounded == []


def test_defaults_are_those_of_the_types():
    spec = root()["properties"]["spec"]["properties"]
    assert spec["replicas"]["default"] == 2
    assert spec["replication"]["default"]["minInSync"] == 1
    assert spec["image"]["default"] == {"pullPolicy": "IfNotPresent"}
    assert "default" not in spec["brokerName"]
    assert msgspec.convert({"nameServers": ["n:9876"]}, Spec).replication.min_in_sync == 1


def test_a_deleted_object_leaves_the_brokers_alone_by_default():
    for one in (TOPIC, CONSUMER_GROUP):
        fields_of_spec = root(one)["properties"]["spec"]["properties"]
        assert fields_of_spec["deletionPolicy"]["default"] == "Retain"


@every_kind
def test_the_status_has_no_defaults(one):
    status = dict(fields(root(one)["properties"]["status"]))
    assert [path for path, schema in status.items() if "default" in schema] == []


@every_kind
def test_only_name_servers_are_required(one):
    assert root(one)["properties"]["spec"]["required"] == ["nameServers"]


@pytest.mark.parametrize("address", ["n:9876", "10.0.0.1:9876", "[fd00::1]:9876"])
def test_a_name_server_has_any_address_that_brokers_take(address):
    assert parse_addresses(address) == [address]
    assert msgspec.convert({"nameServers": [address]}, Spec).name_servers == [address]


@pytest.mark.parametrize("address", ["names", "[fd00::1", "fd00::1:9876", "http://n:9876"])
def test_an_address_in_another_form_is_refused(address):
    with pytest.raises(msgspec.ValidationError, match="regex"):
        msgspec.convert({"nameServers": [address]}, Spec)


def test_settings_that_the_operator_owns_exist():
    from cometmq.broker.settings import BrokerSettings
    from cometmq.runtime.settings.fields import fields_of

    assert set(OWNED_SETTINGS) <= fields_of(BrokerSettings).keys() | {"storePathCommitLog"}


def test_a_type_without_a_structural_schema_is_refused():
    class Either(msgspec.Struct):
        value: int | str

    with pytest.raises((TypeError, ValueError)):
        schema_of(Either)


def test_metadata_of_types_becomes_keywords():
    class Small(msgspec.Struct, rename="camel"):
        max_size: Annotated[int, Meta(ge=1, le=3, description="Size.")] = 2
        names: Annotated[list[Annotated[str, Meta(max_length=5)]], Meta(min_length=1)] = []

    assert schema_of(Small)["properties"] == {
        "maxSize": {
            "description": "Size.", "type": "integer", "format": "int64", "minimum": 1,
            "maximum": 3, "default": 2,
        },
        "names": {"type": "array", "minItems": 1, "items": {"type": "string", "maxLength": 5}},
    }  # fmt: skip
