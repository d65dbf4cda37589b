# SPDX-License-Identifier: Apache-2.0
"""Programs say which address, port or folder is wrong, and which they advertise."""

import json
import re
import socket
from pathlib import Path

import pytest

from cometmq.peers.ports import free_broker_port, free_port
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings.fields import fields_of

from .starting import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    alone,
    refuse,
    suite_options,
)

with_folders = pytest.mark.parametrize(
    ("program", "option"),
    [
        ("standalone", "--data"),
        ("namesrv", "--kv-config-path"),
        ("broker", "--store-path-root-dir"),
        ("txn-checker", "--store-path-root-dir"),
        ("elector", "--group-record"),
    ],
)


@pytest.mark.parametrize(
    ("program", "option"),
    [
        ("standalone", "--data"),
        ("namesrv", "--kv-config-path"),
        ("broker", "--store-path-root-dir"),
        ("txn-checker", "--store-path-root-dir"),
        ("elector", "--group-key-file"),
        ("exporter", "--tls-config-file"),
        ("console", "--store-path-root-dir"),
    ],
)
def test_a_home_folder_that_does_not_exist_is_refused(tmp_path, program, option):
    line = refuse(*alone(program, tmp_path / "data"), option, "~nosuchuser/store", cwd=tmp_path)
    assert "~nosuchuser/store: this machine has no user nosuchuser; give the whole path" in line
    assert option in line
    assert list(tmp_path.iterdir()) == []


def test_every_setting_with_a_path_may_begin_with_a_home_folder():
    """Without the fact PATH, `~/x` is a path below a folder named `~`."""
    exceptions = {"prefix", "groupRecord"}
    for program in PROGRAMS.values():
        for name, field in fields_of(program.settings_type()).items():
            is_path = re.search(r"(?i)path|file(?!Size)|dir\b|folder|home$", name)
            if is_path and field.base is str and not field.is_ineffective:
                assert field.is_path or name in exceptions, (program.name, name)


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


@with_folders
@pytest.mark.parametrize("below", ["", "data"])
def test_a_file_where_a_folder_should_be_is_one_line(tmp_path, program, option, below):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / below
    line = refuse(*alone(program, folder), cwd=tmp_path)
    assert line == (
        f"cometmq: cannot write to the folder {folder}: {tmp_path}/file is a file, not a folder; "
        f"move it away, or choose another folder with {option}"
    )


@with_folders
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
