# SPDX-License-Identifier: Apache-2.0
"""Writes a report in each of its forms; report.json is complete, and has a JSON schema.

The schema is generated from the columns by `make generate` and stored as `report.schema.json`
next to this module, so that readers of reports do not need this package.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.insight.judge import SEVERITIES
from cometmq.spark.collect.exposition import REPORT_METRICS
from cometmq.spark.lag.columns import REPORT_TABLES, STATUSES, Header, Report
from cometmq.spark.lag.output.page import html_report
from cometmq.spark.lag.output.prometheus import metrics_text
from cometmq.spark.tables.columns import SCHEMA_VERSION, Column, Columns
from cometmq.spark.tables.files import write_bytes

SCHEMA_PATH: Final = Path(__file__).with_name("report.schema.json")
DECIMALS: Final = 6
"""Figures are rounded, because the last bits of sums by parallel tasks vary between runs."""
_TYPES: Final = {
    "string": "string",
    "int": "integer",
    "bigint": "integer",
    "double": "number",
    "boolean": "boolean",
    "timestamp": "string",
}
_ENUMS: Final = {
    "status": [*STATUSES],
    "severity": [*SEVERITIES],
    "ttl_model": ["time", "disk", "lost", "none"],
    "lag_time_method": ["exact", "interp", "extrap_min", "zero", "unknown"],
}


def json_report(report: Report) -> bytes:
    """Render the report as JSON, one row per line."""
    parts = [f'{{"schema_version": {report.header.schema_version},\n"header": ']
    parts.append(_text(msgspec.to_builtins(report.header, builtin_types=(datetime,))))
    for name in REPORT_TABLES:
        rows = ",\n".join(_text(row) for row in report.rows(name))
        parts.append(f',\n"{name}": [\n{rows}\n]' if rows else f',\n"{name}": []')
    parts.append("}\n")
    return "".join(parts).encode()


def json_schema() -> bytes:
    tables = {name: _table_schema(columns) for name, columns in REPORT_TABLES.items()}
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "CometMQ lag report",
        "type": "object",
        "required": ["schema_version", "header", *REPORT_TABLES],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "header": _header_schema(),
            **tables,
        },
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _text(value: dict[str, Any]) -> str:
    return json.dumps({key: _plain(one) for key, one in value.items()}, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DECIMALS) if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _table_schema(columns: Columns) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {
            "type": "object",
            "required": [column.name for column in columns],
            "properties": {column.name: _column_schema(column) for column in columns},
        },
    }


def _column_schema(column: Column) -> dict[str, Any]:
    kind = _TYPES[column.type]
    schema: dict[str, Any] = {"description": column.meaning}
    schema["type"] = kind if column.required else [kind, "null"]
    if column.type == "timestamp":
        schema["format"] = "date-time"
    if column.name in _ENUMS:
        schema["enum"] = _ENUMS[column.name] + [None] * (not column.required)
    return schema


def _header_schema() -> dict[str, Any]:
    (_,), components = msgspec.json.schema_components([Header])
    schema: dict[str, Any] = components["Header"]
    properties = dict(_described(schema["properties"]))
    return {"type": "object", "required": [*properties], "properties": properties}


def _described(properties: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, schema in properties.items():
        schema.pop("default", None)
        if name == "severity":
            schema["enum"] = [*SEVERITIES]
        if name == "snapshot_ts":
            schema["format"] = "date-time"
        yield name, schema


FORMS: Final[Mapping[str, Callable[[Report], bytes]]] = {"html": html_report, "json": json_report}


def write_report(
    report: Report, directory: Path, forms: Collection[str] = tuple(FORMS)
) -> list[Path]:
    """Write `report.FORM` for each of the forms; return the paths."""
    paths = [directory / f"report.{form}" for form in forms]
    for form, path in zip(forms, paths, strict=True):
        write_bytes(path, FORMS[form](report))
    return paths


def write_textfile(report: Report, directory: Path) -> Path:
    """Write the metrics for the node exporter; return the path."""
    path = directory / REPORT_METRICS
    write_bytes(path, metrics_text(report).encode())
    return path
