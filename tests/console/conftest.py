# SPDX-License-Identifier: Apache-2.0
"""One suite with a console and something to see, and one browser for all tests."""

import asyncio
import re
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from cometmq.client import Message, Producer, TransactionProducer, TransactionState
from cometmq.client.admin import AdminClient
from cometmq.client.settings import ProducerOptions
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.names import dead_letter_topic, retry_topic

from .browser import Browser

START_S = 180


class Place(NamedTuple):
    """A running console."""

    url: str
    namesrv: str
    token: str


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    namesrv = f"127.0.0.1:{free_port()}"
    options = [
        *("standalone", "--data", str(folder / "data"), "--namesrv-port", namesrv[10:]),
        *("--broker-port", str(free_broker_port()), "--http-port", "-1", "--console-port", "0"),
    ]
    child = Child("suite", [str(PROGRAM), *options], log_path=folder / "log", cwd=folder)
    try:
        child.wait_for_log("is running", START_S)
        (url,) = re.findall(r"console +(http://\S+)/ ", child.log())
        asyncio.run(_fill(namesrv))
        yield Place(url, namesrv, _token(folder, url))
    finally:
        child.stop(60)


async def _fill(namesrv):
    async with AdminClient(namesrv) as admin:
        await admin.create_topic("orders", queue_count=4)
        for name in (dead_letter_topic("billing"), retry_topic("billing")):
            await admin.create_topic(name, queue_count=1)
        await admin.create_group(SubscriptionGroupConfig(group_name="billing"))
        options = ProducerOptions(namesrv=namesrv)
        async with Producer("shop", options=options) as producer:
            for number in range(40):
                body = b'{"number": %d, "text": "<script>alert(1)</script>"}' % number
                await producer.send(
                    Message("orders", body, tag="<b>t", keys=[f"<img/src=x>{number}"])
                )
            await producer.send(Message("orders", b"later", delay_level=18))
            for body in (b"<b>dead</b>", b"\xff\xfe binary"):
                await producer.send(Message(dead_letter_topic("billing"), body))
        await admin.reset_offsets("billing", "orders", 0)

    async def unknown(*_):
        return TransactionState.UNKNOWN

    halves = TransactionProducer("halves", namesrv, execute=unknown, check=unknown)
    async with halves:
        await halves.send_in_transaction(Message("orders", b"half"))


def _token(folder, url):
    with urllib.request.urlopen(f"{url}/healthz", timeout=60):
        return Path(folder, "data", "console", "token").read_text().split()[-1]


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


@pytest.fixture
def tab(browser, place):
    """Return the browser, wide, light, and logged in as an administrator."""
    browser.size(1280, 800)
    browser.theme("light")
    browser.open(f"{place.url}/login")
    browser.submit("input[name=token]", {"input[name=token]": place.token})
    browser.complaints.clear()
    return browser
