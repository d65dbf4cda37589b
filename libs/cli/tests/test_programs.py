# SPDX-License-Identifier: Apache-2.0
"""The programs as processes: they report readiness, stop on signals, and refuse in one line."""

import json
import os
import re
import signal
import socket
import subprocess

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.runtime.process.system import NICENESS
from cometmq.runtime.programs import COMMANDS

from .starting import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    alone,
    fetch,
    refusals,
    refuse,
    suite_options,
)


def test_a_name_server_says_where_it_serves_and_stops_on_a_signal(start, tmp_path):
    (tmp_path / "namesrv.conf").write_text(
        f"listenPort=0\nkvConfigPath={tmp_path}/kv.json\nserverWorkerThreads=8\nclusterTes=true\n"
    )
    child = start("namesrv", "-c", "namesrv.conf")
    events = {e["event"]: e for e in map(json.loads, child.log().splitlines())}
    assert events["settings.unknown"]["keys"] == ["clusterTes"]
    assert events["settings.ineffective"]["settings"].keys() == {"serverWorkerThreads"}
    assert events["settings.unknown"]["did_you_mean"] == {"clusterTes": "clusterTest"}
    address = events["namesrv.ready"]["addresses"][0]
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=60).close()
    assert child.stop(STOP_TIMEOUT_S) == 0


def test_a_console_yields_the_processors_to_brokers(start, tmp_path):
    child = start(*alone("console", tmp_path), "--admin-http-port", -1, ready="console.ready")
    assert os.getpriority(os.PRIO_PROCESS, child.pid) >= NICENESS


def test_a_mistyped_setting_of_a_broker_is_answered_with_the_right_one(start, tmp_path):
    (tmp_path / "broker.conf").write_text(
        "brokerNam=orders\nsendMessageThreadPoolNums=4\nall of it\nbrokerId=0\nbrokerId=0\n"
    )
    options = alone("broker", tmp_path / "data")
    child = start(*options, "-c", "broker.conf", ready="broker.ready")
    events = {e["event"]: e for e in map(json.loads, child.log().splitlines())}
    warning = events["settings.unknown"]
    assert warning["level"] == "warning"
    assert warning["did_you_mean"] == {"brokerNam": "brokerName"}
    child.wait_for_log("settings.repeated", START_TIMEOUT_S)
    last, repeated = map(json.loads, child.log().splitlines()[-2:])
    assert repeated["places"] == {"brokerId": ["broker.conf:4", "broker.conf:5"]}
    assert (last["event"], last["did_you_mean"]) == ("settings.misspelt", warning["did_you_mean"])
    assert last["no_settings"] == warning["no_settings"] == {"broker.conf:3": "all of it"}


def test_a_suite_shows_a_mistyped_setting_below_its_banner(start, tmp_path):
    file = tmp_path / "suite.conf"
    file.write_text("fileReservdTime=4\ntraceOn=true\n")
    child = start("standalone", *suite_options(tmp_path / "data"), "-c", file, ready="did you")
    line = child.log().splitlines()[-1]
    assert line == (
        f"cometmq: fileReservdTime in {file}:1 is no setting; did you mean fileReservedTime?"
    )


def test_a_variable_that_no_program_reads_is_named(start, tmp_path, monkeypatch):
    monkeypatch.setenv("COMETMQ_LISTEN_PORT", "1234")
    monkeypatch.setenv("COMETMQ_BROKER_SERVICE_HOST", "10.0.0.1")  # as in Kubernetes
    right = "COMETMQ_BROKER_LISTEN_PORT"
    child = start(*alone("broker", tmp_path / "alone"), name="alone", ready="broker.ready")
    child.wait_until(lambda: child.log().count("variables.unread") == 2, START_TIMEOUT_S, "end")
    events = [json.loads(line) for line in child.log().splitlines()]
    unread = [event["did_you_mean"] for event in events if event["event"] == "variables.unread"]
    assert unread == [{"COMETMQ_LISTEN_PORT": right}] * 2, "at the begin and at the end"
    child = start("standalone", *suite_options(tmp_path / "data"), name="suite", ready="did you")
    assert child.log().splitlines()[-1] == (
        f"cometmq: no program reads the variable COMETMQ_LISTEN_PORT; did you mean {right} or"
        " COMETMQ_NAMESRV_LISTEN_PORT?"
    )
    monkeypatch.setenv("COMETMQ_ACL_ENABLE", "true")
    guard, other = refusals(*alone("broker", tmp_path / "guarded"), cwd=tmp_path)
    assert guard.endswith("; did you mean COMETMQ_BROKER_ACL_ENABLE?")
    assert other.endswith(f"; did you mean {right}?")


@pytest.mark.parametrize(
    ("program", "text", "other"),
    [
        ("namesrv", "brokerName=a\nlistenPort=0\n", "broker"),
        ("broker", "kvConfigPath=/nowhere/kv.json\n", "namesrv"),
        ("broker", "questionsPerSecond=9\n", "txn-checker"),
        ("standalone", "orderMessageEnable=true\n", "namesrv"),
        ("txn-checker", "brokerRole=SLAVE\n", "broker"),
        ("txn-checker", "collectInterval=1000\n", "exporter"),
        ("exporter", "historyDays=3\n", "console"),
    ],
)
def test_a_settings_file_of_another_program_is_refused(tmp_path, program, text, other):
    (tmp_path / "x.conf").write_text(text)
    line = refuse(*alone(program, tmp_path / "data"), "-c", "x.conf", cwd=tmp_path)
    key = text.partition("=")[0]
    assert f"x.conf is a settings file of cometmq {other}: {key} is no setting" in line
    assert f"; run cometmq {other} -c x.conf, or give " in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("program", [*COMMANDS, "standalone"])
def test_a_file_without_a_known_setting_is_refused(tmp_path, program):
    """Each program is executed here; those of other tests are forked."""
    (tmp_path / "x.conf").write_text("server.port=80\nadminHttpPrt=1\n")
    arguments = (*alone(program, tmp_path / "data"), "-c", "x.conf")
    line = refuse(*arguments, cwd=tmp_path, prefix=("env",))
    assert "x.conf has no setting of" in line
    assert "only server.port, adminHttpPrt (did you mean adminHttpPort?);" in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("program", ["broker", "namesrv", "txn-checker", "elector"])
def test_all_invalid_settings_are_reported_at_once(tmp_path, monkeypatch, program):
    (tmp_path / "x.conf").write_text("adminHttpPort=x\ntls.config.fil=y\n")
    variable = f"COMETMQ_{program.upper().replace('-', '_')}_TLS_CONFIG_FILE"
    monkeypatch.setenv(variable, "/nowhere")
    lines = refusals(
        *alone(program, tmp_path / "data"), "-c", "x.conf", "--colour", "red", cwd=tmp_path
    )
    guess = "unknown setting; did you mean tls.config.file? (from file x.conf:2)"
    assert lines == [
        f"cometmq: tls.config.fil=y: {guess}",
        "cometmq: --colour: unknown option",
        "cometmq: adminHttpPort=x: must be an integer -1..65535 (from file x.conf:1)",
    ]


def test_a_suite_reports_the_settings_of_all_its_programs_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("COMETMQ_NAMESRV_CLUSTER_TEST", "")
    monkeypatch.setenv("COMETMQ_TXN_CHECKER_PULL_BATCH_SIZE", "0")
    (tmp_path / "x.conf").write_text("aclEnable=yes\nbrokerId=one\n")
    options = suite_options(tmp_path / "data")
    lines = refusals("standalone", *options, "-c", "x.conf", cwd=tmp_path)
    assert [line.split(":")[1].strip() for line in lines] == [
        "brokerId=one",
        "aclEnable=yes",
        "clusterTest=",
        "pullBatchSize=0",
    ]


def test_a_suite_says_what_runs_where_and_a_second_start_goes_on(start, tmp_path):
    http_port = free_port()
    for name in ("first", "second"):
        child = start(
            "standalone",
            *suite_options(tmp_path / "data", http_port),
            name=name,
            ready="cluster",
        )
        text = child.log()
        assert str(tmp_path / "data") in text
        assert f"http://127.0.0.1:{http_port}/metrics" in text
        assert "(advertised to clients)" in text
        ports = [int(it) for it in re.findall(r"  (?:broker|slaves) +127\.0\.0\.1:(\d+)", text)]
        assert ports == [ports[0], ports[0] + 1], text
        metrics = fetch(http_port, "/metrics")
        assert 'cometmq_connections{server="namesrv"}' in metrics
        assert "# namesrv" in fetch(http_port, "/settings")
        assert json.loads(fetch(http_port, "/readyz"))["status"] == "ok"
        os.kill(child.pid, signal.SIGINT)
        child.wait_until(lambda child=child: child.exit_status is not None, STOP_TIMEOUT_S, "end")
        assert child.exit_status == 0
        assert "the data stays in" in child.log()


def test_a_suite_whose_output_is_closed_stops_without_an_error(tmp_path):
    """Ctrl-C at `cometmq standalone | tee FILE` ends tee first."""
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        child = subprocess.Popen(
            [str(PROGRAM), "standalone", *map(str, suite_options(tmp_path / "data"))],
            stdout=subprocess.PIPE,
            stderr=file,
            cwd=tmp_path,
        )
    with child:
        assert child.stdout is not None
        while b"cluster" not in child.stdout.readline():
            assert child.poll() is None, errors.read_text()
        child.stdout.close()
        child.send_signal(signal.SIGINT)
        assert child.wait(STOP_TIMEOUT_S) == -signal.SIGPIPE
    assert errors.read_text() == ""
    assert (tmp_path / "data" / "store" / "checkpoint").exists()
    assert not (tmp_path / "data" / "store" / "abort").exists(), "the store was not closed"


def test_a_suite_warns_about_settings_that_its_options_override(start, tmp_path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    options = [*suite_options(data), "--host", "127.0.0.1"]
    port = options[options.index("--broker-port") + 1]
    decided = f"listenPort={port}\nbrokerIP1=127.0.0.1\nadminHttpPort=-1\n"
    file = data / "broker.conf"
    file.write_text(decided)
    quiet = start("standalone", *options, name="quiet", ready="cluster")
    assert "settings.overruled" not in quiet.log()
    quiet.kill()
    file.write_text("listenPort=1234\nstorePathRootDir=/nowhere\nnamesrvAddr=ns:9876\n")
    monkeypatch.setenv("COMETMQ_NAMESRV_LISTEN_PORT", "1")
    monkeypatch.setenv("COMETMQ_TXN_CHECKER_STORE_PATH_ROOT_DIR", "/nowhere")
    monkeypatch.setenv("NAMESRV_ADDR", "of-clients:9876")
    warned = start("standalone", *options, "--log-json", name="warned", ready="cluster")
    (warning,) = [
        event
        for line in warned.log().splitlines()
        if line.startswith("{") and (event := json.loads(line))["event"] == "settings.overruled"
    ]
    assert warning["use"] == {
        "listenPort": "--broker-port",
        "namesrvAddr": "--namesrv-port",
        "storePathRootDir": "--data",
        "COMETMQ_NAMESRV_LISTEN_PORT": "--namesrv-port",
        "COMETMQ_TXN_CHECKER_STORE_PATH_ROOT_DIR": "--data",
    }


def test_a_suite_uses_the_ports_of_its_file_and_of_variables(start, tmp_path, monkeypatch):
    broker_port, namesrv_port, http_port = free_broker_port(), free_port(), free_port()
    file = tmp_path / "suite.conf"
    file.write_text(f"listenPort={broker_port}\nadminHttpPort={http_port}\n")
    monkeypatch.setenv("COMETMQ_NAMESRV_LISTEN_PORT", str(namesrv_port))
    child = start("standalone", "-c", file, ready="cluster")
    assert f"  name server  127.0.0.1:{namesrv_port}\n" in child.log()
    assert f"  broker       127.0.0.1:{broker_port} and " in child.log()
    assert json.loads(fetch(http_port, "/readyz"))["status"] == "ok"
    assert "settings.overruled" not in child.log()
    other = ("standalone", "-c", file, "--data", tmp_path / "other")
    line = refuse(*other, cwd=tmp_path)
    assert line.endswith("choose another with COMETMQ_NAMESRV_LISTEN_PORT")
    line = refuse(*other, "--namesrv-port", 0, cwd=tmp_path)
    assert line.endswith(f"choose another with listenPort in {file}:1")
    file.write_text("listenPort=0\n")
    line = refuse("standalone", "-c", file, cwd=tmp_path)
    assert line.startswith(f"cometmq: listenPort in {file}:1: give a port other than 0: ")


def test_a_suite_refuses_what_only_its_options_can_decide(tmp_path, monkeypatch):
    file = tmp_path / "suite.conf"
    file.write_text(
        "brokerIP1=10.0.0.1\nbindAddress=10.0.0.1\nstorePathRootDir=/nowhere\nnamesrvAddr=ns:9876\n"
        "listenPrt=5\n"
    )
    monkeypatch.setenv("COMETMQ_NAMESRV_KV_CONFIG_PATH", "/nowhere/kv.json")
    monkeypatch.setenv("COMETMQ_TXN_CHECKER_ADMIN_HTTP_PORT", "7")
    lines = refusals("standalone", "-c", file, cwd=tmp_path)
    addresses, folders, server, port = (
        f"{reason}; give {option}, or remove this setting"
        for reason, option in (
            ("standalone takes its addresses from --host", "--host"),
            ("standalone keeps its files in the folder of --data", "--data"),
            ("standalone uses its own name server, at --namesrv-port", "--namesrv-port"),
            ("the programs of standalone share one HTTP port", "--http-port"),
        )
    )
    assert lines == [
        f"cometmq: bindAddress=10.0.0.1 in {file}:2: {addresses}",
        f"cometmq: brokerIP1=10.0.0.1 in {file}:1: {addresses}",
        f"cometmq: namesrvAddr=ns:9876 in {file}:4: {server}",
        f"cometmq: storePathRootDir=/nowhere in {file}:3: {folders}",
        f"cometmq: COMETMQ_NAMESRV_KV_CONFIG_PATH=/nowhere/kv.json: {folders}",
        f"cometmq: COMETMQ_TXN_CHECKER_ADMIN_HTTP_PORT=7: {port}",
        f"cometmq: listenPrt in {file}:5 is no setting; did you mean listenPort?",
    ]
    assert not (tmp_path / "cometmq-data").exists()


def test_a_suite_refuses_invalid_settings_that_its_options_decide(tmp_path):
    file = tmp_path / "suite.conf"
    file.write_text("listenPort=http\n")
    line = refuse("standalone", *suite_options(tmp_path / "data"), "-c", file, cwd=tmp_path)
    assert line.startswith("cometmq: listenPort=http: ")
    assert str(file) in line
