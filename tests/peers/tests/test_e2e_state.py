# SPDX-License-Identifier: Apache-2.0
"""The state of groups, metrics and the report are read and written as the scenarios expect."""

from cometmq.peers.e2e import metrics
from cometmq.peers.e2e.broker_groups import is_ready
from cometmq.peers.e2e.report import Report

API_METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="leases",subresource="",verb="PATCH"} 1.5e+02
apiserver_request_total{code="409",resource="leases",subresource="",verb="PUT"} 2
apiserver_request_total{code="200",resource="leases",subresource="",verb="GET"} 7
apiserver_request_total{code="101",resource="pods",subresource="exec",verb="CONNECT"} 3
apiserver_request_total{code="201",resource="events",subresource="",verb="POST"} 4
apiserver_request_total_more{code="201",resource="events",verb="POST"} 9
"""


def group(*, observed, ready="True", progressing="False"):
    states = {"Ready": ready, "Progressing": progressing}
    found = [
        {"type": type_, "status": status, "observedGeneration": observed}
        for type_, status in states.items()
    ]
    return {"metadata": {"generation": 2}, "status": {"conditions": found}}


def test_a_group_is_ready_once_its_current_spec_is():
    assert is_ready(group(observed=2))
    assert not is_ready(group(observed=1))
    assert not is_ready(group(observed=2, ready="False"))
    assert not is_ready(group(observed=2, progressing="True"))
    assert not is_ready({"metadata": {"generation": 1}})


def test_writes_are_counted_by_verb_and_resource():
    found = metrics.api_writes(API_METRICS)
    assert found == {"PATCH leases": 150, "PUT leases": 2, "POST events": 4}


def test_figures_without_a_limit_have_no_result(tmp_path):
    report = Report(tmp_path / "report.md")
    report.add("create", "until ready", 12.34, unit="s")
    report.add("kill", "failed sends", 1, limit=0)
    assert (tmp_path / "report.md").read_text().splitlines()[2:] == [
        "| create | until ready: 12.3 s |  |  |",
        "| kill | failed sends: 1 | at most 0 | missed |",
    ]
