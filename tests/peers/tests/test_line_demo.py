# SPDX-License-Identifier: Apache-2.0
"""The demo: its parts, and a small run with real processes."""

import asyncio
import signal
import subprocess
import sys
import sysconfig
from itertools import count
from pathlib import Path
from time import monotonic

import pytest

from cometmq.peers.demo.consumer import Line, Report, encode_report, read_reports
from cometmq.peers.demo.progress import Counts, DemoFailed, show_progress
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


def test_the_corpus_is_the_library_and_nothing_beside_it(files):
    assert [(file.name, file.package, file.line_count) for file in files] == [
        ("json/tool.py", "json", 3),
        ("os.py", "os", 2),
        ("abc.py", "abc", 0),
    ]
    assert b"".join(files[0].lines()) == b"a\r\n\nb\n"


def test_the_installed_library_is_some_megabytes_of_lines():
    files = library_files()
    root = Path(sysconfig.get_path("stdlib"))
    assert sum(file.line_count for file in files) > 100_000
    assert not [file for file in files if "site-packages" in file.path.relative_to(root).parts]
    assert all(b"".join(file.lines()) == file.path.read_bytes() for file in files[:20])


def test_lines_in_any_order_and_twice_make_the_files(files):
    lines = [line for file in files for line in lines_of(file)]
    rebuilder = rebuilt(files, [*reversed(lines), *lines])
    assert rebuilder.faults() == []
    assert (rebuilder.line_count, rebuilder.repeated_count) == (5, 5)


def test_a_repeated_send_stored_later_is_tolerated(files):
    tool, os_file, _ = files
    lines = lines_of(tool) + lines_of(os_file)
    again = Line("json/tool.py:1", 3, 900, b"a\r\n")
    assert rebuilt(files, [again, *lines]).faults() == []


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


async def test_reports_arrive_as_they_were_written_until_the_process_ends():
    reports = [Report(queue_count=4), Report([Line("os.py:1", 0, 5, b"x" * 70_000)])]
    stream = asyncio.StreamReader()
    stream.feed_data(b"".join(map(encode_report, reports)) + b"\x00\x00")
    stream.feed_eof()
    assert [report async for report in read_reports(stream)] == reports


async def test_progress_gives_up_only_when_nothing_moves(monkeypatch):
    monkeypatch.setattr("cometmq.peers.demo.progress.REFRESH_S", 0.01)
    with pytest.raises(DemoFailed, match="4 of 10 messages were sent, 3 received; nothing moved"):
        await show_progress(10, lambda: Counts(4, 3), 0.0)
    begin, received = monotonic(), count()
    await show_progress(30, lambda: Counts(30, next(received)), 0.2)
    assert monotonic() - begin > 0.2


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
