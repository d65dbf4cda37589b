# SPDX-License-Identifier: Apache-2.0
"""Two servers of one program cannot have the same port, and the error names both settings."""

import pytest

from cometmq.broker.instances import PORT_STEP
from cometmq.peers.ports import free_broker_port


def test_the_ports_of_a_suite_must_differ(call, tmp_path):
    data, port = tmp_path / "data", free_broker_port()
    for option, number, name in [
        ("--namesrv-port", port, "--broker-port and --namesrv-port"),
        ("--http-port", port + 1, "the port for slaves (--broker-port, or haListenPort in"),
        ("--http-port", port - 2, "the second port of the broker (--broker-port) and --http-port"),
        ("--console-port", port, "--broker-port and --console-port"),
        ("--console-port", port + PORT_STEP + 1, "--console-port and broker 2 of --brokers"),
    ]:
        words = ("--data", data, "--broker-port", port, "--brokers", 2)
        refused = call("standalone", *words, option, number)
        refused.assert_refused(2, name)
        assert f" have the same port, {number}: change one" in refused.err
        assert not data.exists()


def test_the_ports_of_a_broker_must_differ(call, tmp_path):
    port, file = free_broker_port(), tmp_path / "broker.conf"
    file.write_text(f"listenPort={port}\nhaListenPort={port}\nstorePathRootDir={tmp_path}/data\n")
    refused = call("broker", "-c", file, "-n", "127.0.0.1:1")
    refused.assert_refused(2, f"listenPort in {file}:1 and the port for slaves (haListenPort in ")
    assert refused.err.endswith(f" have the same port, {port}: change one\n")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("words", [["namesrv"], ["console", "-n", "127.0.0.1:1"]])
def test_the_ports_of_a_program_must_differ(call, tmp_path, words):
    port = free_broker_port()
    refused = call(*words, "--listen-port", port, "--admin-http-port", port)
    refused.assert_refused(2, "--listen-port and --admin-http-port have the same port")
