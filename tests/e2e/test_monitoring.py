# SPDX-License-Identifier: Apache-2.0
"""A Prometheus scrapes the pods that the charts' PodMonitors select, and queries have data.

The queries are those of dashboards, alerts and the examples of autoscaling. Prometheus runs on
this machine; pods are found and scraped through the API server.
"""

from contextlib import suppress

from cometmq.peers.e2e import java, load
from cometmq.peers.e2e.kubectl import until
from cometmq.peers.e2e.lag_reports import GROUP as BEHIND
from cometmq.peers.errors import PeerError
from cometmq.peers.ha.load import CONSUMERS, TOPIC
from cometmq.peers.prometheus.autoscaling import lag_queries
from cometmq.peers.prometheus.faults import DISK_SETTING, faults
from cometmq.peers.prometheus.queries import (
    CONDITIONAL,
    Query,
    alert_queries,
    panel_queries,
    with_values,
)

GROUP = "orders"
TIMEOUT_S = 300
POLL_S = 1
ENDED = {"Failed", "Succeeded"}
JOBS = {
    f"cometmq-{one}" for one in ("broker", "lag-collector", "namesrv", "operator", "txn-checker")
}
DECLARED_COUNT = 2


def pods(world):
    """Return the namespaces and names of all pods of the suite that run."""
    return {
        (namespace.name, pod["metadata"]["name"])
        for namespace in (world.mq, world.operators)
        for pod in namespace.list("pods", "")
        if pod["metadata"]["name"] not in (load.POD, java.POD)
        and pod["status"]["phase"] not in ENDED
    }


def until_scraped(world, prometheus):
    """Wait until every pod of the suite is scraped; return the number of targets."""

    def scraped():
        found = [one["metric"] for one in prometheus.rows("up == 1")]
        return {(one["namespace"], one["pod"]) for one in found}, {one["job"] for one in found}

    with suppress(PeerError):
        until(lambda: scraped() == (pods(world), JOBS), TIMEOUT_S, "all pods", poll_s=POLL_S)
    targets = prometheus.targets()
    assert scraped() == (pods(world), JOBS), [(one["labels"], one["lastError"]) for one in targets]
    return len(targets)


def until_data(prometheus, queries):
    """Wait until all queries have had data."""
    missing = list(queries)

    def has_data():
        missing[:] = [one for one in missing if not prometheus.rows(one.expr)]
        return not missing

    with suppress(PeerError):
        until(has_data, TIMEOUT_S, "data", poll_s=POLL_S)
    assert [one.name for one in missing] == []


def declare_topics(world, prometheus):
    """Declare the topics of the example; wait until the brokers have them."""
    world.declare_topics()
    carried_out = "cometmq_operator_declared_ready == 1"
    until(lambda: len(prometheus.rows(carried_out)) == DECLARED_COUNT, TIMEOUT_S, carried_out)


def _behind(panel):
    return {"group": BEHIND} if panel.startswith("cometmq-lag-reports") else {}


def test_queries_have_data(ready, lag_reports, under_load, prometheus, report):
    """Queries of panels and autoscalers are made for the group under load, those of lag reports for
    a group that is behind, those of alerts for all groups.
    """
    lag_reports.produce(1)
    lag_reports.install()
    lag_reports.until_snapshot(1)
    lag_reports.run("lag-report-scraped")
    values = {
        "broker": GROUP, "topic": TOPIC, "group": CONSUMERS, "namespace": ready.mq.name,
    }  # fmt: skip
    panels = [
        Query(one.name, with_values(one.expr, **values | _behind(one.name)))
        for one in panel_queries()
    ]
    alerts = [one for one in alert_queries() if one.name not in CONDITIONAL]
    autoscalers = lag_queries(TOPIC, CONSUMERS)
    with under_load() as running:
        count = until_scraped(ready, prometheus)
        declare_topics(ready, prometheus)
        until_data(prometheus, [*panels, *alerts, *autoscalers])
        running.finish()
        assert running.result["faults"] == []
    report.add("Prometheus and the PodMonitors of both charts", "targets up", count)
    for what, queries in (("panels", panels), ("alerts", alerts), ("autoscalers", autoscalers)):
        report.add(f"queries of {what}", "with data", len(queries))


def test_no_alert_fires(ready, prometheus):
    """All alerts are evaluated without an error, and those that fire at once have no reason."""

    def are_evaluated():
        return {rule["health"] for rule in prometheus.alert_rules()} == {"ok"}

    until(are_evaluated, TIMEOUT_S, "all alerts are evaluated", poll_s=POLL_S)
    rules = prometheus.alert_rules()
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_the_other_alerts_have_data_once_they_have_a_reason(ready, prometheus, report):
    def cometmq(*words):
        ready.mq.kubectl("exec", load.POD, "--", "cometmq", *words, "-n", ready.namesrv)

    def refuse_above(percent):
        ready.patch({"config": {DISK_SETTING: str(percent)}})

    queries = [one for one in alert_queries() if one.name in CONDITIONAL]
    with faults(cometmq, refuse_above):
        until_data(prometheus, queries)
    ready.patch({"config": {DISK_SETTING: None}})
    ready.until_ready()
    report.add("queries of alerts that had no reason before", "with data", len(queries))
