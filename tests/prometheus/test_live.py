# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a real suite, and evaluates the queries of dashboards and alerts.

The queries of our dashboards, of our alerts and of rocketmq-exporter's public dashboard must return
data; alerts must be evaluated without errors. The queries of the examples of autoscaling must
return the lag.
"""

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import generate
import pytest
from monitoring.boards import BOARDS
from monitoring.panels import Variable
from monitoring.prometheus import configuration

from cometmq.peers.observed import CONSUMERS, TOPIC, ObservedSuite
from cometmq.peers.ports import HOST
from cometmq.peers.processes import wait_until
from cometmq.peers.prometheus.autoscaling import lag_queries
from cometmq.peers.prometheus.faults import DISK_SETTING, faults
from cometmq.peers.prometheus.operator_page import operator_page
from cometmq.peers.prometheus.queries import CONDITIONAL, alert_queries, panel_queries, with_values
from cometmq.peers.prometheus.server import Prometheus

ROOT = Path(__file__).resolve().parents[2]
DATA_TIMEOUT_S = 180.0
ROW = re.compile(r"^\| `(\w+)` \| \w+ \| ([\w, ]*) \|", re.MULTILINE)

PUBLIC_QUERIES = Path(__file__).with_name("public_queries.txt").read_text().splitlines()
"""The queries of dashboard 10477 on grafana.com."""


def report_page() -> str:
    """Return metrics in the form of a lag report: one row for each metric of the catalogue."""
    page = generate.PAGES["spark-metrics"].render()
    lines = []
    for name, labels in ROW.findall(page):
        pairs = ",".join(f'{label.strip()}="x"' for label in labels.split(",") if label.strip())
        lines.append(f"{name}{{{pairs}}} 1\n")
    return "".join(lines)


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves the metrics of programs that this test cannot run."""

    def do_GET(self) -> None:
        body = (report_page() + operator_page()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def others() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer((HOST, 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"{HOST}:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedSuite]:
    running = ObservedSuite(tmp_path_factory.mktemp("suite"))
    try:
        running.start()
        running.send_and_consume()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def prometheus(
    suite: ObservedSuite, others: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    jobs = {f"cometmq-{name}": [address] for name, address in suite.http.items()}
    settings = configuration({**jobs, "others": [others]}, interval_s=1)
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), settings)
    try:
        wait_until(lambda: running.has_all_targets(len(jobs) + 1), 240, "all targets are up")
        suite.send()
        yield running
    finally:
        running.stop()


PANELS = [pytest.param(one.expr, id=one.name) for one in panel_queries()]

ALERTS = {
    has_reason: [
        pytest.param(one.expr, id=one.name)
        for one in alert_queries()
        if (one.name in CONDITIONAL) is has_reason
    ]
    for has_reason in (False, True)
}


LAGS = [pytest.param(one.expr, id=one.name) for one in lag_queries(TOPIC, CONSUMERS)]


VARIABLES = [
    pytest.param(variable, id=f"{board.uid}: {variable.name}")
    for board in BOARDS
    for variable in board.variables
]


@pytest.mark.parametrize("expr", PANELS)
def test_a_panel_has_data(prometheus: Prometheus, expr: str) -> None:
    shown = with_values(expr)
    wait_until(lambda: bool(prometheus.rows(shown)), DATA_TIMEOUT_S, f"data for {shown}")


@pytest.mark.parametrize("expr", ALERTS[False])
def test_an_alert_has_data(prometheus: Prometheus, expr: str) -> None:
    wait_until(lambda: bool(prometheus.rows(expr)), DATA_TIMEOUT_S, f"data for {expr}")


@pytest.mark.parametrize("expr", PUBLIC_QUERIES)
def test_a_query_of_the_public_dashboard_has_data(prometheus: Prometheus, expr: str) -> None:
    wait_until(lambda: bool(prometheus.rows(expr)), DATA_TIMEOUT_S, f"data for {expr}")


@pytest.mark.parametrize("expr", LAGS)
def test_an_autoscaler_gets_the_lag(
    prometheus: Prometheus, suite: ObservedSuite, expr: str
) -> None:
    """The one result is the whole lag of the group; copies of the brokers do not count twice."""
    lag = suite.lag()
    assert lag > 0

    def values() -> list[int]:
        return [int(row["value"][1]) for row in prometheus.rows(expr)]

    wait_until(lambda: values() == [lag], DATA_TIMEOUT_S, f"{lag} for {expr}")


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_has_values(prometheus: Prometheus, variable: Variable) -> None:
    expr = with_values(variable.metric)

    def has_value() -> bool:
        return any(row["metric"].get(variable.label) for row in prometheus.rows(expr))

    wait_until(has_value, DATA_TIMEOUT_S, f"values of {variable.label} in {expr}")


def test_every_alert_is_evaluated_without_an_error(prometheus: Prometheus) -> None:
    rules = prometheus.alert_rules
    wait_until(lambda: {rule["health"] for rule in rules()} == {"ok"}, 180, "all rules evaluated")
    firing = {rule["name"] for rule in rules() if rule["state"] == "firing"}
    harmless = {  # the report is fake, and on a loaded machine the first election takes long
        "CometmqFailover", "CometmqFailoverSlow", "CometmqLagReportOld",
        "CometmqMessagesWillBeLost",
    }  # fmt: skip
    assert firing <= harmless, "a suite that is well raises no other alert"


@pytest.fixture(scope="module")
def faulty(suite: ObservedSuite) -> Iterator[None]:
    change = ("mqadmin", "updateBrokerConfig", "-b", suite.last_broker, "-k", DISK_SETTING, "-v")
    with faults(suite.run, lambda percent: suite.run(*change, str(percent))):
        yield


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("expr", ALERTS[True])
def test_an_alert_has_data_once_it_has_a_reason(prometheus: Prometheus, expr: str) -> None:
    wait_until(lambda: bool(prometheus.rows(expr)), DATA_TIMEOUT_S, f"data for {expr}")
