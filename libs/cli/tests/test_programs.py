# SPDX-License-Identifier: Apache-2.0
"""The programs as processes: they report readiness, stop on signals, and refuse in one line."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.runtime.programs import COMMANDS

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 180


@pytest.fixture
def start(tmp_path):
    """Start programs, and kill all of them after the test."""
    children = []

    def start(*args, name="program", ready="ready"):
        command = [str(PROGRAM), *map(str, args)]
        child = Child(name, command, log_path=tmp_path / f"{name}.log", cwd=tmp_path)
        children.append(child)
        child.wait_for_log(ready, START_TIMEOUT_S)
        return child

    yield start
    for child in children:
        if child.exit_status is None:
            child.kill()


def refuse(*args, cwd, prefix=()):
    """Run a program that cannot start; return its single line."""
    (line,) = refusals(*args, cwd=cwd, prefix=prefix)
    return line


def refusals(*args, cwd, prefix=()):
    """Run a program that cannot start; return its lines."""
    done = subprocess.run(
        [*prefix, str(PROGRAM), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("cometmq: ")]


def suite_options(data, http_port=-1):
    return [
        *("--data", data, "--namesrv-port", free_port()),
        *("--broker-port", free_broker_port(), "--http-port", http_port),
    ]


def fetch(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return answer.read().decode()


def test_a_name_server_says_where_it_serves_and_stops_on_a_signal(start, tmp_path):
    (tmp_path / "namesrv.conf").write_text(
        f"listenPort=0\nkvConfigPath={tmp_path}/kv.json\nserverWorkerThreads=8\nclusterTes=true\n"
    )
    child = start("namesrv", "-c", "namesrv.conf")
    events = {e["event"]: e for e in map(json.loads, child.log().splitlines())}
    assert events["settings.unknown"]["keys"] == ["clusterTes", "serverWorkerThreads"]
    assert events["settings.unknown"]["did_you_mean"] == {"clusterTes": "clusterTest"}
    address = events["namesrv.ready"]["addresses"][0]
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    assert child.stop(STOP_TIMEOUT_S) == 0


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


GROUP = ("--broker-name", "orders", "--control-members", "0=127.0.0.1:1")


def alone(program, folder):
    """Return a valid command line, to which tests add their options."""
    port = ("--listen-port", free_broker_port())
    return {
        "standalone": ("standalone", *suite_options(folder)),
        "namesrv": ("namesrv", *port, "--kv-config-path", folder / "kv.json"),
        "broker": ("broker", *port, "--store-path-root-dir", folder),
        "txn-checker": ("txn-checker", "-n", "127.0.0.1:1", "--store-path-root-dir", folder),
        "exporter": ("exporter", "-n", "127.0.0.1:1", "--admin-http-port", free_port()),
        "console": ("console", "-n", "127.0.0.1:1", *port, "--store-path-root-dir", folder),
        "elector": ("elector", *GROUP, "--group-record", f"file:{folder}/orders.json"),
    }[program]


def test_standalone_says_why_its_broker_needs_a_port(call, tmp_path):
    refused = call("standalone", "--data", tmp_path / "data", "--broker-port", 0)
    refused.assert_refused(2, "--broker-port: give a port other than 0: the broker also listens")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("program", "option"),
    [
        ("standalone", "--namesrv-port"),
        ("standalone", "--broker-port"),
        ("standalone", "--http-port"),
        ("namesrv", "--listen-port"),
        ("namesrv", "--admin-http-port"),
        ("broker", "--listen-port"),
        ("broker", "--admin-http-port"),
        ("txn-checker", "--admin-http-port"),
        ("elector", "--admin-http-port"),
        ("exporter", "--admin-http-port"),
        ("console", "--admin-http-port"),
        ("console", "--listen-port"),
    ],
)
def test_a_port_in_use_is_one_line_that_names_the_option(tmp_path, program, option):
    host = "127.0.0.1" if program in {"standalone", "console"} else ""
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        line = refuse(*alone(program, tmp_path / "data"), option, port, cwd=tmp_path)
    assert line == (
        f"cometmq: cannot listen on {host or '*'}:{port}: Address already in use; "
        f"stop the program that uses the port, or choose another with {option}"
    )
    assert not (tmp_path / "data").exists()


def test_the_second_port_of_a_broker_is_distinguished(tmp_path):
    port = free_broker_port()
    with socket.create_server(("", port - 2)):
        options = alone("broker", tmp_path / "data")
        line = refuse(*options, "--listen-port", port, cwd=tmp_path)
    assert f"cannot listen on *:{port - 2} (the second port of the broker): Address already" in line


def test_the_port_for_slaves_of_a_suite_is_checked_as_its_file_sets_it(tmp_path):
    data = tmp_path / "data"
    port = free_broker_port()
    with socket.create_server(("127.0.0.1", port + 1)):
        options = ("standalone", "--data", data, "--namesrv-port", 0, "--http-port", -1)
        place = f"127.0.0.1:{port + 1} (the port for slaves): Address already in use"
        derived = refuse(*options, "--broker-port", port, cwd=tmp_path)
        assert place in derived
        assert derived.endswith(f"--broker-port, or haListenPort in {data}/broker.conf")
        (tmp_path / "suite.conf").write_text(f"haListenPort={port + 1}\n")
        explicit = refuse(
            *options,
            "--broker-port",
            free_broker_port(),
            "-c",
            tmp_path / "suite.conf",
            cwd=tmp_path,
        )
        assert place in explicit
        assert explicit.endswith("suite.conf:1")


def test_a_setting_of_a_file_or_variable_is_named_as_it_was_given(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "broker.conf").write_text(f"listenPort=0\nstorePathRootDir={tmp_path}/file\n")
    line = refuse("broker", "-c", "broker.conf", cwd=tmp_path)
    assert line.endswith("choose another folder with storePathRootDir in broker.conf:2")

    monkeypatch.setenv("COMETMQ_TXN_CHECKER_STORE_PATH_ROOT_DIR", f"{tmp_path}/file")
    line = refuse("txn-checker", "-n", "127.0.0.1:1", cwd=tmp_path)
    assert line.endswith("choose another folder with COMETMQ_TXN_CHECKER_STORE_PATH_ROOT_DIR")


@pytest.mark.parametrize(
    ("program", "option"),
    [
        ("standalone", "--data"),
        ("namesrv", "--kv-config-path"),
        ("broker", "--store-path-root-dir"),
        ("txn-checker", "--store-path-root-dir"),
        ("elector", "--group-record"),
    ],
)
@pytest.mark.parametrize("below", ["", "data"])
def test_a_file_where_a_folder_should_be_is_one_line(tmp_path, program, option, below):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / below
    line = refuse(*alone(program, folder), cwd=tmp_path)
    assert line == (
        f"cometmq: cannot write to the folder {folder}: {tmp_path}/file is a file, not a folder; "
        f"move it away, or choose another folder with {option}"
    )


@pytest.mark.parametrize(
    ("program", "option"),
    [
        ("standalone", "--data"),
        ("namesrv", "--kv-config-path"),
        ("broker", "--store-path-root-dir"),
        ("txn-checker", "--store-path-root-dir"),
        ("elector", "--group-record"),
    ],
)
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, program, option):
    folder = Path("/proc/data")  # not even root can create it
    line = refuse(*alone(program, folder), cwd=tmp_path)
    assert line.startswith(f"cometmq: cannot write to the folder {folder}: ")
    assert line.endswith(f"choose another folder with {option}")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "0", "::ffff:0.0.0.0"])
@pytest.mark.parametrize(
    ("program", "option"),
    [("standalone", "--host"), ("broker", "--broker-ip1"), ("broker", "--broker-ip2")],
)
def test_an_unreachable_address_is_not_advertised(tmp_path, program, option, host):
    line = refuse(*alone(program, tmp_path / "data"), option, host, cwd=tmp_path)
    assert line.startswith(f"cometmq: {option}: others cannot connect to {host}; give the address")
    assert not (tmp_path / "data").exists()


def test_a_suite_refuses_unknown_names_and_warns_about_addresses_of_others(start, tmp_path):
    options = suite_options(tmp_path / "data")
    line = refuse("standalone", *options, "--host", "no.such.host.invalid", cwd=tmp_path)
    assert line.startswith("cometmq: --host: no.such.host.invalid cannot be resolved: ")
    assert not (tmp_path / "data").exists()
    child = start("standalone", *options, "--host", "192.0.2.1", "--log-json", ready="cluster")
    (warning,) = [
        event
        for line in child.log().splitlines()
        if line.startswith("{") and (event := json.loads(line))["event"] == "address.foreign"
    ]
    assert warning["host"] == "192.0.2.1"


def test_a_broker_that_listens_everywhere_says_which_address_it_advertises(start, tmp_path):
    options = alone("broker", tmp_path / "data")
    child = start(*options, "--bind-address", "0.0.0.0", ready="broker.ready")
    event = json.loads(child.log().splitlines()[-1])
    host, _, port = event["advertised"].rpartition(":")
    assert host not in {"0.0.0.0", "::", ""}
    assert port == str(options[2])
    assert "brokerIP1 sets another" in event["advertised_by"]


def test_a_broker_that_listens_at_one_address_advertises_it(start, tmp_path):
    options = alone("broker", tmp_path / "data")
    child = start(*options, "--bind-address", "127.0.0.1", ready="broker.ready")
    event = json.loads(child.log().splitlines()[-1])
    assert event["advertised"] == f"127.0.0.1:{options[2]}"
    assert event["advertised_by"] == "--bind-address"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    line = refuse("standalone", *suite_options(tmp_path / "file" / "data"), cwd=tmp_path)
    assert line == (
        f"cometmq: cannot write to the folder {tmp_path}/file/data: {tmp_path}/file is a file, "
        "not a folder; move it away, or choose another folder with --data"
    )


def test_a_store_that_another_process_uses_is_one_line(start, tmp_path):
    child = start("standalone", *suite_options(tmp_path / "data"), ready="cluster")
    line = refuse("standalone", *suite_options(tmp_path / "data"), cwd=tmp_path)
    assert line == (
        f"cometmq: {tmp_path}/data/store/lock is locked: process {child.pid} uses this folder"
    )


@pytest.mark.parametrize("program", ["standalone", "broker", "txn-checker"])
def test_a_second_start_complains_about_the_folder_before_any_port(start, tmp_path, program):
    options = alone(program, tmp_path / "data")
    port = "--http-port" if program == "standalone" else "--admin-http-port"
    options = [*options, port, free_port()]
    ready = {"txn-checker": "txn_checker.ready", "standalone": "cluster"}.get(program, "ready")
    child = start(*options, ready=ready)
    line = refuse(*options, cwd=tmp_path)
    assert line.endswith(f"/lock is locked: process {child.pid} uses this folder")


def test_a_second_name_server_complains_about_its_main_port(start, tmp_path):
    options = [*alone("namesrv", tmp_path), "--admin-http-port", free_port()]
    start(*options)
    line = refuse(*options, cwd=tmp_path)
    assert f":{options[2]}: Address already in use" in line


def test_a_broker_registers_and_leaves_when_it_stops(start, tmp_path):
    namesrv = start("namesrv", "--listen-port", free_port(), name="namesrv")
    address = json.loads(namesrv.log().splitlines()[0])["addresses"][0]
    port = address.split(":")[1]
    (tmp_path / "broker.conf").write_text(
        f"brokerName=broker-x\nbrokerIP1=127.0.0.1\nlistenPort={free_broker_port()}\n"
        f"storePathRootDir={tmp_path}/store\nsendMessageThreadPoolNums=4\n"
    )
    broker = start("broker", "-c", "broker.conf", "-n", f"127.0.0.1:{port}", name="broker")
    namesrv.wait_for_log("broker.registered", START_TIMEOUT_S)
    assert broker.stop(STOP_TIMEOUT_S) == 0
    namesrv.wait_for_log("broker.unregistered", START_TIMEOUT_S)
    assert namesrv.stop(STOP_TIMEOUT_S) == 0
