# SPDX-License-Identifier: Apache-2.0
"""`cometmq produce` while no name server answers."""

import socket
import ssl
import threading
from typing import Any
from unittest.mock import AsyncMock

import pytest
from typer.main import get_group

from cometmq.cli.operation.check import app as checks
from cometmq.cli.verbs.patience import Patience
from cometmq.client import Message
from cometmq.client.errors import NoNamesrv, WrongServer
from cometmq.peers.ports import free_port
from cometmq.remoting.errors import ConnectFailed

REFUSED = "no name server answers: no connection to {}: Connection refused"
START_ONE = "; start one (cometmq standalone), or give its address with -n or NAMESRV_ADDR\n"


@pytest.mark.parametrize(
    "command", [("produce", "T", "x", "--timeout", 0), ("topic", "list"), ("top",)]
)
def test_all_commands_report_a_refused_connection_in_the_same_words(call, command):
    namesrv = f"127.0.0.1:{free_port()}"
    result = call(*command, "-n", namesrv)
    assert result == (1, "", f"cometmq: {REFUSED.format(namesrv)}{START_ONE}")


@pytest.mark.parametrize("command", [("topic", "list"), ("lag",), ("check", "broker")])
def test_the_user_decides_how_long_to_wait_for_an_answer(call, command):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        namesrv = f"127.0.0.1:{silent.getsockname()[1]}"
        after = call(*command, "-n", namesrv, "--timeout", 0.2)
        before = call("--timeout", 0.2, *command, "-n", namesrv)
    for result in (after, before):
        assert result.status != 0
        assert "accepts connections, but does not answer within 0.2 s" in result.out + result.err


@pytest.mark.parametrize("command", [("produce", "T", "x"), ("topic", "list")])
def test_a_command_that_gets_no_thread_says_so(call, monkeypatch, command):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    result = call(*command, "-n", "localhost:1")
    assert (result.status, result.out) == (1, "")
    assert "cannot be started: raise the limit of processes and threads" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("kind", sorted(get_group(checks).commands))
def test_all_checks_name_the_remedy(call, kind):
    namesrv = f"127.0.0.1:{free_port()}"
    result = call("check", kind, "-n", namesrv)
    status, word = (2, "CRITICAL") if kind in {"broker", "roundtrip"} else (3, "UNKNOWN")
    text = f"{word}: {kind} cluster: {REFUSED.format(namesrv)}{START_ONE}"
    assert result == (status, text, "")


@pytest.mark.parametrize(
    "command",
    [
        ("produce", "T", "x", "--timeout", 0.5),
        ("--timeout", 0.5, "produce", "T", "x"),
        ("--timeout", 99, "produce", "T", "x", "--timeout", 0.5),
    ],
    ids=["after", "before", "both"],
)
def test_produce_retries_until_its_deadline(call, command):
    namesrv = f"127.0.0.1:{free_port()}"
    result = call(*command, "-n", namesrv)
    first, last = result.err.splitlines(keepends=True)
    assert (result.status, result.out) == (1, "")
    assert first == f"cometmq: {REFUSED.format(namesrv)}; trying again for 0.5 s\n"
    assert last == f"cometmq: {REFUSED.format(namesrv)}; gave up after 0.5 s (--timeout){START_ONE}"


def test_a_time_limit_before_a_command_has_the_bounds_of_its_own_option(call):
    result = call("--timeout", 0, "consume", "T")
    assert result.status == 2
    assert "Invalid value for '--timeout': 0.0 is not in the range x>=0.001" in result.err


def test_produce_waits_for_a_name_server(running_cluster, tmp_path, pipe_to):
    with running_cluster(tmp_path) as cluster:
        cluster.start_broker("broker-a")
        cluster.children.pop("namesrv").stop(60)
        sending = pipe_to("produce", "T", "x", "--timeout", "300", "-n", cluster.namesrv)
        assert sending.stderr.readline().endswith(b"; trying again for 300 s\n")
        cluster.start_namesrv()
        out, errors = sending.communicate(timeout=300)
        assert sending.returncode == 0, errors
        assert b"SEND_OK" in out


def no_namesrv(kind, *causes):
    error = kind("no name server answers")
    inner = error
    for inner.__cause__ in causes:
        inner = inner.__cause__
    return error


@pytest.mark.parametrize(
    "error",
    [
        no_namesrv(WrongServer, ConnectFailed("a broker")),
        no_namesrv(NoNamesrv, ConnectFailed("TLS failed"), ssl.SSLError("alert")),
    ],
    ids=["broker", "TLS"],
)
async def test_a_wrong_address_or_key_fails_at_once(error):
    producer: Any = AsyncMock(**{"send.side_effect": error})
    with pytest.raises(NoNamesrv) as caught:
        await Patience(300).send(producer, Message("T", b"x", message_id="1"))
    assert caught.value is error
