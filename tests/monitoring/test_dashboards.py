# SPDX-License-Identifier: Apache-2.0
"""Dashboards and alert rules are current and complete, and name metrics that exist."""

import re
from pathlib import Path
from typing import Any

import dashboards
import generate
import pytest
import yaml
from monitoring.boards import BOARDS
from monitoring.panels import Board, as_json
from prometheus_client.parser import text_string_to_metric_families

from cometmq.peers.observed import ObservedSuite
from cometmq.peers.prometheus.operator_page import operator_page

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"\b(?:cometmq|rocketmq|process|python)_\w+|\bup\b")
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/monitoring/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]


def report_metrics() -> set[str]:
    """Return the metrics of lag reports, which a job writes; no program exposes them."""
    page = generate.PAGES["spark-metrics"].render()
    return set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of all samples that the programs expose."""
    suite = ObservedSuite(tmp_path_factory.mktemp("suite"))
    try:
        suite.start()
        suite.send_and_consume()
        pages = [operator_page(), *map(suite.scrape, suite.http)]
        found = {
            sample.name
            for page in pages
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
    finally:
        suite.stop()
    return found | report_metrics() | {"up"}


def queries(board: Board) -> set[str]:
    panels = {query.expr for panel in board.panels for query in panel.queries}
    return panels | {variable.metric for variable in board.variables}


def test_dashboards_are_current() -> None:
    wanted = dashboards.files()
    known = {path: path.read_text() for path in dashboards.FOLDER.glob("*.json")}
    assert known == wanted, "run `make dashboards`"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_dashboard_is_complete(board: Board) -> None:
    panels = as_json(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def test_a_variable_that_a_query_uses_is_declared() -> None:
    for board in BOARDS:
        names = {variable.name for variable in board.variables} | {"__rate_interval"}
        used = {name for query in queries(board) for name in re.findall(r"\$(\w+)", query)}
        assert used <= names, board.uid


@pytest.mark.timeout(600)
def test_panels_and_alerts_name_metrics_that_real_programs_expose(exposed: set[str]) -> None:
    wanted = {
        name: place
        for place, exprs in (
            *((board.uid, queries(board)) for board in BOARDS),
            *((rule["alert"], [rule["expr"]]) for rule in RULES),
        )
        for expr in exprs
        for name in METRIC.findall(expr)
    }
    conditional = {  # rows that appear only while the reported problem exists
        "cometmq_group_mismatched_subscriptions",
        "cometmq_store_refusal",
    }
    assert len(wanted) > 60
    assert {
        name: place for name, place in wanted.items() if name not in exposed | conditional
    } == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"]
    runbook = rule["annotations"]["runbook_url"]
    assert runbook.startswith("docs/runbooks/")
    assert (ROOT / runbook).exists()


def test_alert_names_are_unique() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
