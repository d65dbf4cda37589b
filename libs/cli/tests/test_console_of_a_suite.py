# SPDX-License-Identifier: Apache-2.0
"""The console of `cometmq standalone`: a socket until somebody connects, then a process."""

import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port
from cometmq.peers.processes import Child
from cometmq.runtime.process.system import NICENESS

START_S = 180
DEADLINE_S = 60
MEMORY_BYTES_MAX = 60_000_000
"""An open console adds 35 MB on Python 3.11."""
MAIN_PAGES = ("", "brokers", "topics", "groups", "messages", "delayed", "connections")


@pytest.fixture
def suite(tmp_path):
    options = [
        *("standalone", "--data", str(tmp_path / "data"), "--namesrv-port", "0"),
        *("--broker-port", str(free_broker_port()), "--http-port", "-1", "--console-port", "0"),
    ]
    child = Child("suite", [str(PROGRAM), *options], log_path=tmp_path / "log", cwd=tmp_path)
    try:
        child.wait_for_log("is running", START_S)
        yield child
    finally:
        child.stop(60)


def url_of(suite):
    return re.findall(r"console +(http://\S+)", suite.log())[0]


def processes_of(suite):
    """Return the children of a suite."""
    found = Path(f"/proc/{suite.pid}/task/{suite.pid}/children").read_text().split()
    return [int(word) for word in found]


def niceness(pid):
    return os.getpriority(os.PRIO_PROCESS, pid)


def page(url, path="", **headers):
    request = urllib.request.Request(url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def eventually(condition):
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return found


def test_the_process_starts_with_the_first_connection(suite, tmp_path):
    url = url_of(suite)
    assert processes_of(suite) == []
    (place,) = re.findall(r"need the token, the last word in (\S+)\)", suite.log())
    token = Path(place).read_text().split()[-1]
    assert Path(place).stat().st_mode & 0o777 == 0o600
    assert Path(place).parent.stat().st_mode & 0o777 == 0o700
    status, text = page(url, "brokers")
    assert status == 200
    assert "127.0.0.1" in text
    (process,) = processes_of(suite)
    assert niceness(process) >= NICENESS
    assert niceness(suite.pid) == niceness(os.getpid())
    assert place == str(tmp_path / "data" / "console" / "token")
    status, _ = page(url, "topic/create?name=x", Authorization=f"Bearer {token}")
    assert status == 200
    os.kill(process, signal.SIGKILL)
    eventually(lambda: processes_of(suite) == [])
    assert page(url)[0] == 200  # the connection waits until the next process accepts it
    (process,) = processes_of(suite)
    assert suite.stop(60) == 0
    assert not Path(f"/proc/{process}").exists()


def memory_bytes_of(suite):
    """Return the anonymous memory of a suite's processes; that of programs' files is shared."""
    texts = [
        Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in (suite.pid, *processes_of(suite))
    ]
    return sum(int(re.findall(r"Anonymous: +(\d+)", text)[0]) for text in texts) << 10


def test_an_open_console_costs_no_more_memory_than_the_guide_says(suite):
    before = memory_bytes_of(suite)
    assert [page(url_of(suite), path)[0] for path in MAIN_PAGES] == [200] * len(MAIN_PAGES)
    assert memory_bytes_of(suite) - before < MEMORY_BYTES_MAX


def test_a_console_ends_if_its_suite_is_killed(suite):
    assert page(url_of(suite))[0] == 200
    (process,) = processes_of(suite)
    suite.kill()
    eventually(lambda: not Path(f"/proc/{process}").exists())


def test_a_port_in_use_is_refused_before_anything_is_created(call, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = call(
            "standalone", "--data", tmp_path / "data", "--namesrv-port", 0, "--http-port", -1,
            "--broker-port", free_broker_port(), "--console-port", port,
        )  # fmt: skip
    refused.assert_refused(2, f"cannot listen on 127.0.0.1:{port}: Address already in use")
    assert refused.err.endswith(" with --console-port\n")
    assert not (tmp_path / "data").exists()
