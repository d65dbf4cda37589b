# SPDX-License-Identifier: Apache-2.0

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker.copies.roles import role_hook
from cometmq.broker.copies.roles.role_hook import RoleHook, check_hook
from cometmq.broker.role import RoleState, ServedRole
from cometmq.remoting.errors import SettingsError
from cometmq.testing.broker.broker_groups import running_group
from cometmq.testing.broker.logs import RecordingLog

FENCED = RoleState(ServedRole.FENCED, 0, 2)


def program(folder: Path, text: str) -> str:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


async def until_calls(folder: Path, expected: list[str]) -> None:
    async with asyncio.timeout(60):
        while calls(folder) != expected:  # noqa: ASYNC110  # files have no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(hook: RoleHook) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(hook.run())
        yield
        task.cancel()


async def test_the_program_is_told_each_role_from_the_first_to_the_stop(tmp_path: Path) -> None:
    hook = RoleHook(
        program(tmp_path, f'echo "$*" >>{tmp_path}/calls'), "shop-a", FENCED, log=RecordingLog()
    )
    async with running(hook):
        await until_calls(tmp_path, ["fenced 0 shop-a"])
        hook.tell(RoleState(ServedRole.MASTER, 3, 0))
        await until_calls(tmp_path, ["fenced 0 shop-a", "master 3 shop-a"])
    await hook.stopped()
    assert calls(tmp_path)[-1] == "stopped 3 shop-a"


async def test_a_program_that_fails_is_run_again_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_hook, "RETRY_S", 0.01)
    log = RecordingLog()
    text = f"""echo "$1" >>{tmp_path}/calls
test "$(wc -l <{tmp_path}/calls)" -ge 3 || {{ echo "no such device" >&2; exit 2; }}"""
    hook = RoleHook(program(tmp_path, text), "shop-a", FENCED, log=log)
    async with running(hook):
        await until_calls(tmp_path, ["fenced"] * 3)
    assert [one["error"] for one in log.named("role_hook.failed")] == [
        "exit status 2: no such device"
    ] * 2


async def test_a_program_that_hangs_is_killed_and_sees_the_last_role_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_hook, "TIMEOUT_S", 1.0)
    text = f"""echo "$1" >>{tmp_path}/calls
test "$1" != fenced || exec sleep 600"""
    log = RecordingLog()
    hook = RoleHook(program(tmp_path, text), "shop-a", FENCED, log=log)
    async with running(hook):
        await until_calls(tmp_path, ["fenced"])
        hook.tell(RoleState(ServedRole.SLAVE, 3, 2))
        hook.tell(RoleState(ServedRole.MASTER, 4, 0))
        await until_calls(tmp_path, ["fenced", "master"])
    (failure,) = log.named("role_hook.failed")
    assert failure["error"] == "it did not end within 1 s"


async def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    log = RecordingLog()
    hook = RoleHook(str(tmp_path / "absent"), "shop-a", FENCED, log=log)
    await hook.stopped()
    (failure,) = log.named("role_hook.failed")
    assert failure["error"] == "No such file or directory"


def test_a_program_that_cannot_be_run_is_refused_at_the_start(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch(mode=0o644)
    faults = {"hook": "absolute path", "/absent/hook": "does not exist", str(plain): "chmod"}
    for name, fault in faults.items():
        with pytest.raises(SettingsError, match=fault):
            check_hook(name, setting="roleHook")


async def test_a_failover_moves_the_address(tmp_path: Path) -> None:
    """The member that becomes master is told so, and the one that stops, too."""
    hook = program(tmp_path, f'echo "$1" >>{tmp_path}/calls')
    async with running_group(tmp_path / "group", 2, roleHook=hook) as group:
        old = group.open_master
        await group.kill(old)
        await group.until_master(old)
        await group.until(lambda: calls(tmp_path).count("master") == 2)
    assert calls(tmp_path)[-1] == "stopped"


EXAMPLE = Path(__file__).parents[5] / "deploy/examples/virtual-address.sh"


@pytest.mark.skipif(os.geteuid() != 0, reason="addresses of a namespace need root")
def test_the_example_moves_an_address_once_and_again() -> None:
    """In a network namespace of its own; without arping, as in a minimal image."""
    shows = "ip -oneline address show dev lo | grep -c 10.0.0.100 || true"
    lines = ["ip link set lo up"]
    for role in ("fenced", "master", "master", "slave", "stopped"):
        lines += [f"{EXAMPLE} {role} 1 shop-a", shows]
    words = ["unshare", "--net", "sh", "-ec", "\n".join(lines)]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "ADDRESS": "10.0.0.100/24", "INTERFACE": "lo"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "1", "0", "0"]
