# SPDX-License-Identifier: Apache-2.0

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker.app import BrokerApp
from cometmq.broker.opening import acl_path
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.offsets import GetMaxOffset
from cometmq.remoting.errors import ServerError, SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.signature import SessionCredentials, signing
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import Loaded, load
from cometmq.testing.runtime.pages import get

ACCOUNTS = "accounts:\n- accessKey: userKey1\n  secretKey: userSecret1\n"
GOOD = SessionCredentials("userKey1", "userSecret1")
BAD = SessionCredentials("userKey1", "userSecret2")


def settings(folder: Path, **given: str) -> Loaded[BrokerSettings]:
    values = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(folder / "store"),
        "aclEnable": "true",
        **given,
    }
    return load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=values)


@asynccontextmanager
async def running(app: BrokerApp) -> AsyncIterator[str]:
    await app.start()
    try:
        yield app.addresses[0]
    finally:
        await app.stop()


async def ask(address: str, credentials: SessionCredentials | None) -> int:
    before = [signing(credentials)] if credentials else []
    clock = SystemClock()
    client = RemotingClient(ClientSettings(), clock_ms=clock.monotonic_ms, before=before)
    try:
        header = GetMaxOffset(topic="TBW102", queue_id=0)
        return (await client.invoke(address, Code.GET_MAX_OFFSET, header, timeout_ms=60_000)).code
    finally:
        await client.close()


async def test_requests_are_checked_and_refusals_counted(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    admin = AdminHttp()
    app = BrokerApp(
        settings(tmp_path), log=NO_LOG, clock=SystemClock(), admin=admin,
        config_path=tmp_path / "broker.conf",
    )  # fmt: skip
    async with running(app) as address:
        assert await ask(address, GOOD) == 0
        with pytest.raises(ServerError, match="Check signature failed for accessKey=userKey1"):
            await ask(address, BAD)
        with pytest.raises(ServerError, match="No accessKey is configured"):
            await ask(address, None)
        metrics = (await get(admin, "/metrics")).content
    await admin.stop()
    assert sample(metrics, "cometmq_acl_refused_total") == 2
    assert sample(metrics, "cometmq_acl_files_broken") == 0


def sample(metrics: bytes, name: str) -> float:
    (line,) = (it for it in metrics.decode().splitlines() if it.startswith(name))
    return float(line.rpartition(" ")[2])


async def test_without_access_control_every_request_is_served(tmp_path: Path) -> None:
    app = BrokerApp(settings(tmp_path, aclEnable="false"), log=NO_LOG, clock=SystemClock())
    async with running(app) as address:
        assert await ask(address, None) == 0
        assert await ask(address, BAD) == 0


async def test_a_broken_file_refuses_the_start_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yml"
    path.write_text("accounts: [{accessKey: short}]")
    app = BrokerApp(settings(tmp_path, aclFile=str(path)), log=NO_LOG, clock=SystemClock())
    with pytest.raises(SettingsError) as caught:
        await app.start()
    assert str(caught.value) == (
        f"{path}: account short: accessKey and secretKey must be longer than 6"
    )


def test_the_path_of_the_accounts(tmp_path: Path) -> None:
    conf = Path("/etc/cometmq/broker.conf")
    chosen = settings(tmp_path, aclFile="/a/b.yml", rocketmqHome="/opt/rocketmq").value
    home = settings(tmp_path, rocketmqHome="/opt/rocketmq").value
    plain = settings(tmp_path).value
    assert acl_path(chosen, conf) == Path("/a/b.yml")
    assert acl_path(home, conf) == Path("/opt/rocketmq/conf/plain_acl.yml")
    assert acl_path(plain, conf) == Path("/etc/cometmq/plain_acl.yml")
    assert acl_path(plain, None) == tmp_path / "store" / "config" / "plain_acl.yml"


async def test_a_broker_without_accounts_is_not_ready_until_a_file_has_one(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text("accounts: []\n")
    admin = AdminHttp()
    app = BrokerApp(
        settings(tmp_path), log=NO_LOG, clock=SystemClock(), admin=admin,
        config_path=tmp_path / "broker.conf",
    )  # fmt: skip
    async with running(app):
        ready = await get(admin, "/readyz")
        assert ready.status_code == 503
        reason = json.loads(ready.content)["checks"]["accounts"]
        assert reason.endswith(f"every request is refused: add accounts to {file}")
        file.write_text(ACCOUNTS)
        async with asyncio.timeout(60):
            while (await get(admin, "/readyz")).status_code != 200:  # noqa: ASYNC110  # polled
                await asyncio.sleep(0.05)


async def test_a_ready_broker_names_an_account_file_with_which_it_would_not_start_again(
    tmp_path: Path,
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    admin = AdminHttp()
    app = BrokerApp(
        settings(tmp_path), log=NO_LOG, clock=SystemClock(), admin=admin,
        config_path=tmp_path / "broker.conf",
    )  # fmt: skip
    async with running(app) as address:
        assert await accounts(admin) == "ok"
        file.write_text(ACCOUNTS + "  admin: [userSecret1\n")
        async with asyncio.timeout(60):
            while (text := await accounts(admin)) == "ok":  # noqa: ASYNC110  # polled
                await asyncio.sleep(0.05)
        assert text.startswith(f"the account file {file} cannot be used: the accounts read before")
        assert "userSecret1" not in text  # the port needs no account
        assert await ask(address, GOOD) == 0
        metrics = (await get(admin, "/metrics")).content
        assert sample(metrics, "cometmq_acl_files_broken") == 1
        file.write_text(ACCOUNTS)
        async with asyncio.timeout(60):
            while await accounts(admin) != "ok":  # noqa: ASYNC110  # polled
                await asyncio.sleep(0.05)
    await admin.stop()


async def accounts(admin: AdminHttp) -> str:
    """Return what a ready broker logs about its accounts."""
    ready = await get(admin, "/readyz")
    assert ready.status_code == 200, ready.content
    text: str = json.loads(ready.content)["checks"]["accounts"]
    return text
