# SPDX-License-Identifier: Apache-2.0
"""A real suite with accounts, and a console before it."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.console.app import ConsoleApp
from cometmq.console.settings import ConsoleSettings
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.signature import SessionCredentials
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load

ACCOUNTS = """\
accounts:
- accessKey: chief-key
  secretKey: chief-secret
  admin: true
- accessKey: reader-key
  secretKey: reader-secret
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
  topicPerms:
  - orders=DENY
"""
CHIEF = SessionCredentials("chief-key", "chief-secret")
START_TIMEOUT_S = 180


class Suite(NamedTuple):
    namesrv: str
    broker: str
    options: ClientOptions
    data: Path = Path()


def started(folder: Path) -> tuple[Child, Suite]:
    """Start a suite with access control."""
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "broker.conf").write_text("aclEnable=true\nautoCreateTopicEnable=true\n")
    (data / "plain_acl.yml").write_text(ACCOUNTS)
    namesrv_port, broker_port = free_port(), free_broker_port()
    options = [
        *("--data", str(data), "--namesrv-port", str(namesrv_port)),
        *("--broker-port", str(broker_port), "--http-port", str(free_port())),
    ]
    child = Child(
        "suite", [str(PROGRAM), "standalone", *options], log_path=folder / "log", cwd=folder
    )
    child.wait_for_log("is running", START_TIMEOUT_S)
    namesrv = f"127.0.0.1:{namesrv_port}"
    options_ = ClientOptions(namesrv=namesrv, credentials=CHIEF)
    return child, Suite(namesrv, f"127.0.0.1:{broker_port}", options_, data)


class Desk:
    """A running console, a browser with its cookies, and an admin client."""

    def __init__(self, app: ConsoleApp, web: httpx2.AsyncClient, admin: AdminClient) -> None:
        self.app = app
        self.web = web
        self.admin = admin
        self.token = ""


async def console(
    suite: Suite, folder: Path, stack: AsyncExitStack, *, is_verified: bool = True, **settings: str
) -> Desk:
    """Start a console."""
    given: dict[str, Any] = {
        "namesrvAddr": suite.namesrv,
        "listenPort": "0",
        "storePathRootDir": str(folder),
        "accessKey": CHIEF.access_key,
        "secretKey": CHIEF.secret_key,
        **settings,
    }
    loaded = load(ConsoleSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    app = ConsoleApp(loaded, log=NO_LOG, clock=SystemClock())
    await app.start()
    stack.push_async_callback(app.stop)
    web = httpx2.AsyncClient(base_url=app.url, timeout=30, trust_env=False, verify=is_verified)
    stack.push_async_callback(web.aclose)
    admin = await stack.enter_async_context(AdminClient(options=suite.options))
    desk = Desk(app, web, admin)
    desk.token = (folder / "token").read_text().split()[-1] if (folder / "token").exists() else ""
    return desk
