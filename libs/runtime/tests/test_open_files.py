# SPDX-License-Identifier: Apache-2.0
import resource
import subprocess
import sys

import pytest

from cometmq.runtime.process import system
from cometmq.runtime.process.system import open_files_limit, raise_open_files_limit

RUN = """
import resource
from cometmq.runtime.process.system import open_files_limit
from cometmq.runtime.service import run

async def main(stop):
    print(open_files_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))

run(main)
"""


def test_a_service_may_open_as_many_files_as_the_hard_limit_allows():
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))

    done = subprocess.run(
        [sys.executable, "-c", RUN], preexec_fn=limit, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["200", "200", "200"]


@pytest.mark.parametrize("error", [OSError(1, "not permitted"), ValueError("not allowed")])
def test_a_limit_that_cannot_be_raised_stays_as_it_is(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 128))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_open_files_limit()
    assert open_files_limit() == 64


def test_without_a_hard_limit_the_soft_limit_becomes_large(monkeypatch):
    limits = [(1024, resource.RLIM_INFINITY)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    raise_open_files_limit()
    raise_open_files_limit()
    assert limits[1:] == [(1 << 20, resource.RLIM_INFINITY)]
    assert open_files_limit() == 1 << 20
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert open_files_limit() == 1 << 20


@pytest.mark.parametrize(
    ("limit", "connections"),
    [(1 << 20, 20_000), (4_096, 4_096 - 512 - 512), (1_024, 128), (200, 25)],
)
def test_connections_leave_descriptors_for_all_other_files(monkeypatch, limit, connections):
    monkeypatch.setattr(system, "open_files_limit", lambda: limit)
    assert system.connections_within(20_000, files_max=512) == connections
    assert system.connections_within(10, files_max=512) == 10
