# SPDX-License-Identifier: Apache-2.0
"""The demo: its parts, and a small run with real processes."""

import asyncio
import signal
import subprocess
import sys

import pytest

from cometmq.peers.demo.consumer import Line
from cometmq.peers.demo.rebuild import Rebuilder, library_files
from cometmq.peers.demo.run import demo


@pytest.fixture
def files(tmp_path):
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "tool.py").write_bytes(b"a\r\n\nb\n")
    (tmp_path / "os.py").write_bytes(b"x\ny")
    (tmp_path / "abc.py").write_bytes(b"")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "os.py").write_bytes(b"not of the library")
    return library_files(tmp_path)


def lines_of(file, queue_id=3):
    return [
        Line(f"{file.name}:{number}", queue_id, 10 * number, text)
        for number, text in enumerate(file.lines(), start=1)
    ]


def rebuilt(files, lines):
    rebuilder = Rebuilder(files)
    for line in lines:
        rebuilder.add(line)
    return rebuilder


def test_lines_in_any_order_and_twice_make_the_files(files):
    lines = [line for file in files for line in lines_of(file)]
    rebuilder = rebuilt(files, [*reversed(lines), *lines])
    assert rebuilder.faults() == []
    assert (rebuilder.line_count, rebuilder.repeated_count) == (5, 5)


@pytest.mark.parametrize(
    ("number", "line", "fault"),
    [
        (1, None, "json/tool.py: 2 of 3 lines arrived"),
        (1, Line("json/tool.py:2", 3, 20, b"c"), "json/tool.py: SHA-256 differs"),
        (1, Line("json/tool.py:2", 4, 20, b"\n"), "json/tool.py: its lines are in several queues"),
        (1, Line("json/tool.py:2", 3, 99, b"\n"), "json/tool.py: its lines are not in order"),
    ],
)
def test_a_file_that_differs_is_named(files, number, line, fault):
    tool, os_file, _ = files
    lines = lines_of(tool)
    lines[number : number + 1] = [line] if line else []
    (found,) = rebuilt(files, lines + lines_of(os_file)).faults()
    assert found.startswith(fault)


def test_a_part_of_the_library_goes_through_a_broker_and_back(capfd):
    files = library_files()[-100:]
    assert asyncio.run(demo(files))
    out = capfd.readouterr().out
    assert "compared   100 of 100 files are equal" in out
    assert "2 processes of one group, with 4 and 4 queues" in out
    assert "when all is compared, or after 60 s without progress" in out


def test_a_demo_that_stalls_says_so_and_names_the_option():
    command = [sys.executable, "-u", "-m", "cometmq.peers.demo", "--timeout", "0.001"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert done.stderr == (
        "cometmq: the consumers have not shared the queues: [0, 0]; nothing moved for 0.001 s; on a"
        " slow machine: make demo ARGS='--timeout 0.003'\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_demo_leaves_nothing_behind(tmp_path, number):
    command = ["env", f"TMPDIR={tmp_path}", sys.executable, "-u", "-m", "cometmq.peers.demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert any(line.startswith("  consumers") for line in process.stdout)
        process.send_signal(number)
        rest = process.communicate(timeout=180)[0]
    assert process.returncode == 130, rest
    assert list(tmp_path.iterdir()) == []
