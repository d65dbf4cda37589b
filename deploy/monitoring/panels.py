# SPDX-License-Identifier: Apache-2.0
"""Defines dashboards as values, and renders them as Grafana JSON (schema version 39, Grafana 11).

A dashboard is a list of rows of panels. The width of a panel follows from the number of panels in
its row, so the tables in `boards.py` contain no coordinates. Ids and positions depend only on the
order, so the same table always gives the same file.
"""

from dataclasses import dataclass, field
from typing import Any, Final

SCHEMA: Final = 39
COLUMNS: Final = 24
ROW_HEIGHT: Final = 8
STAT_HEIGHT: Final = 4
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A graph, or a single figure (`kind="stat"`)."""

    title: str
    unit: str
    meaning: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    is_stacked: bool = False


@dataclass(frozen=True)
class Row:
    """Panels side by side under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A drop-down list at the top of a dashboard: the values of a metric's label."""

    name: str
    metric: str  # with optional selectors
    label: str
    is_multi: bool = True


@dataclass(frozen=True)
class Board:
    """A dashboard; its uid must never change, because links contain it."""

    uid: str
    title: str
    meaning: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    tags: tuple[str, ...] = field(default=("cometmq",))

    @property
    def panels(self) -> list[Panel]:
        """All panels, in order."""
        return [panel for row in self.rows for panel in row.panels]


def as_json(board: Board) -> dict[str, Any]:
    """Build the JSON object that Grafana imports."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.meaning,
        "tags": list(board.tags),
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [_link_to_others(board.tags[0])],
        "templating": {"list": [_datasource(), *map(_variable, board.variables)]},
        "panels": _panels(board),
    }


def _link_to_others(tag: str) -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "CometMQ",
        "tags": [tag],
        "asDropdown": True,
        "keepTime": True,
        "includeVars": True,
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": variable.name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": variable.is_multi,
        "includeAll": variable.is_multi,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"} if variable.is_multi else {},
    }


def _panels(board: Board) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    top = 0
    for row in board.rows:
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        found.append(
            {"id": len(found) + 1, "type": "row", "title": row.title, "collapsed": False,
             "gridPos": place, "panels": []}
        )  # fmt: skip
        top += 1
        is_flat = all(panel.kind == "stat" for panel in row.panels)
        height = STAT_HEIGHT if is_flat else ROW_HEIGHT
        width = COLUMNS // len(row.panels)
        for number, panel in enumerate(row.panels):
            place = {"h": height, "w": width, "x": number * width, "y": top}
            found.append({"id": len(found) + 1, "gridPos": place, **_panel(panel)})
        top += height
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    is_stat = panel.kind == "stat"
    custom = {} if is_stat else {"fillOpacity": 10, "showPoints": "never"}
    if panel.is_stacked:
        custom["stacking"] = {"mode": "normal"}
    options: dict[str, Any] = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
        if is_stat
        else {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        }
    )
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query.expr,
             "legendFormat": query.legend or "__auto"}
            for number, query in enumerate(panel.queries)
        ],
    }  # fmt: skip
