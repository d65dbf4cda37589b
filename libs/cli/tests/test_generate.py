# SPDX-License-Identifier: Apache-2.0
"""Files for Grafana, Prometheus, KEDA and systemd."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cometmq.cli.verbs.generate import TEMPLATES

ROOT = Path(__file__).resolve().parents[3]


def test_all_dashboards_are_listed_printed_and_written(call, tmp_path):
    boards = [row["dashboard"] for row in call("generate", "grafana", "--json").json]
    assert len(boards) > 5
    printed = call("generate", "grafana", boards[0]).out
    assert json.loads(printed)["uid"] == boards[0]
    written = call("generate", "grafana", "--out", tmp_path / "new", "--json").json
    assert written["written"] == boards
    assert (tmp_path / "new" / f"{boards[0]}.json").read_text() == printed
    refused = call("generate", "grafana", "cometmq-overvieu")
    refused.assert_refused(2, "there is no dashboard cometmq-overvieu; did you mean")


def test_a_folder_that_cannot_be_written_is_named(call, tmp_path):
    (tmp_path / "file").touch()
    refused = call("generate", "grafana", "--out", tmp_path / "file" / "x")
    refused.assert_refused(2, f"cannot write to {tmp_path / 'file' / 'x'}: ")


def test_prometheus_gets_its_targets_and_rules(call):
    done = call(
        *("generate", "prometheus", "--target", "broker=b0:8080,[::1]:8081"),
        *("--target", "namesrv=n:8080"),
    )
    jobs = yaml.safe_load(done.out)["scrape_configs"]
    assert [(it["job_name"], it["static_configs"][0]["targets"]) for it in jobs] == [
        ("cometmq-broker", ["b0:8080", "[::1]:8081"]),
        ("cometmq-namesrv", ["n:8080"]),
    ]
    assert len(yaml.safe_load(call("generate", "prometheus", "--rules").out)["groups"]) > 1
    call("generate", "prometheus").assert_refused(2, "give --rules, or the --target")
    assert call("generate", "prometheus", "--target", "b:1, x: y").status == 2


def test_the_scaled_object_of_the_guide_is_the_default(call):
    assert call("generate", "keda", "billing", "Orders_Paid").out == (
        TEMPLATES / "keda.yaml"
    ).read_text(encoding="utf-8")


def test_a_scaled_object_names_what_was_asked_for(call):
    done = call(
        *("generate", "keda", "Mail_Out", "Mails", "News", "--max", 4, "--threshold", 50),
        *("--cluster", "c1", "--prometheus", "http://prom:9090/p"),
    )
    found = yaml.safe_load(done.out)
    trigger = found["spec"]["triggers"][0]["metadata"]
    assert found["spec"]["scaleTargetRef"]["name"] == found["metadata"]["name"] == "mail-out"
    assert (found["spec"]["maxReplicaCount"], trigger["threshold"]) == (4, "50")
    assert trigger["serverAddress"] == "http://prom:9090/p"
    assert 'cluster="c1",group="Mail_Out",topic=~"Mails|News|%RETRY%Mail_Out"' in trigger["query"]


@pytest.mark.parametrize(
    "args",
    [
        ('bill"ing', "T"),
        ("billing", "a}b"),
        ("billing", "T", "--prometheus", "http://x\n  evil: 1"),
        ("billing", "T", "--deployment", "A b"),
        ("billing", "T", "--cluster", '"} or vector(1)'),
    ],
)
def test_names_that_would_break_the_file_are_refused(call, args):
    refused = call("generate", "keda", *args)
    assert (refused.status, refused.out) == (2, "")


def test_a_unit_runs_this_command_with_its_settings(call):
    unit = call(
        *("generate", "systemd", "broker", "--config", "/srv/mq/b.conf", "--user", "mq"),
        *("--command", "/usr/bin/cometmq"),
    ).out
    assert "\nExecStart=/usr/bin/cometmq broker -c /srv/mq/b.conf\n" in unit
    assert "\nUser=mq\nGroup=mq\n" in unit
    assert "\nReadWritePaths=/srv/mq\n" in unit
    assert "ExecStart=" in call("generate", "systemd", "namesrv").out
    call("generate", "systemd", "brokr").assert_refused(2, "'brokr' is not broker or namesrv; did")
    assert call("generate", "systemd", "broker", "--user", "a\nExecStart=x").status == 2


def test_the_files_of_the_repository_are_those_of_the_package():
    for path in (
        *(ROOT / "deploy/systemd").glob("*.service"),
        ROOT / "deploy/monitoring/alerts.yaml",
        ROOT / "deploy/examples/autoscaling/keda.yaml",
    ):
        assert path.read_text() == (TEMPLATES / path.name).read_text(encoding="utf-8")


def test_the_first_program_sends_and_consumes(call, suite, topic, tmp_path, monkeypatch):
    text = call("generate", "app", topic, f"{topic}_group").out
    file = tmp_path / "app.py"
    file.write_text(text)
    monkeypatch.setenv("NAMESRV_ADDR", suite.namesrv)

    def program(*words):
        return subprocess.Popen(
            [sys.executable, str(file), *words], stdout=subprocess.PIPE, text=True
        )

    with program("send", "one") as sending:
        assert sending.communicate(timeout=120)[0].startswith("SEND_OK ")
    with program("consume") as consuming:
        try:
            assert consuming.stdout.readline() == "one\n"
        finally:
            consuming.kill()
    assert call("generate", "app", "no topic", "group").status == 2
