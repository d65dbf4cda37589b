# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.runtime.process import system
from cometmq.runtime.process.system import NICENESS, yield_processors

RUN = """
import os, threading
from pathlib import Path
from cometmq.runtime.process.system import yield_processors

os.nice({niceness})
yield_processors()
found = []
thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start()
thread.join()
group = Path("/proc/self/autogroup")
print(found[0], *(group.read_text() if group.exists() else "").split()[-1:])
"""


def own_niceness():
    """Return the niceness of this process; a test that runs a program in it may have changed it."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def lowered(*, niceness=0, is_service=True):
    """Run a program that lowers its priority; return the niceness of the process, then of its
    session.
    """
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(niceness=niceness)],
        capture_output=True, text=True, check=True, start_new_session=is_service,
    )  # fmt: skip
    return done.stdout.split()


def test_a_service_yields_with_its_session():
    process, *session = lowered()
    assert int(process) == max(NICENESS, own_niceness())
    assert session in ([str(NICENESS)], [])  # not every kernel, nor every control group, has one


def test_the_session_of_a_terminal_is_left_alone():
    own = Path("/proc/self/autogroup")
    before = own.read_text() if own.exists() else ""
    process, *_ = lowered(is_service=False)
    assert int(process) == max(NICENESS, own_niceness())
    assert before == (own.read_text() if own.exists() else "")


def test_a_lower_priority_is_kept():
    assert int(lowered(niceness=12)[0]) == min(19, own_niceness() + 12)


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), OSError(38, "no call")])
def test_a_sandbox_that_forbids_it_does_no_harm(monkeypatch, tmp_path, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    for text in ("nonsense", "/autogroup-7 nice nonsense", "", None):
        group = tmp_path / "autogroup"
        group.unlink(missing_ok=True)
        if text is not None:
            group.write_text(text)
        monkeypatch.setattr(system, "_AUTOGROUP", group)
        yield_processors()
        assert text is None or group.read_text() == text
