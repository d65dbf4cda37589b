# SPDX-License-Identifier: Apache-2.0
"""One suite with a console and something to see, and one browser for all tests."""

import asyncio
import re
import urllib.request
from contextlib import ExitStack, suppress
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
from cometmq.remoting.errors import TopicNotExist
from cometmq.remoting.names import dead_letter_topic, retry_topic

from .browser import Browser

START_S = 180
LONG = "payments_settlement_reconciliation_europe"
"""A name as long as those of large companies, for a topic and a group."""


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
    with ExitStack() as stack:
        child = Child("suite", [str(PROGRAM), *options], log_path=folder / "log", cwd=folder)
        stack.callback(child.stop, 60)
        child.wait_for_log("is running", START_S)
        (url,) = re.findall(r"console +(http://\S+)/ ", child.log())
        asyncio.run(_fill(namesrv))
        reads = ("consume", LONG, "-g", "watchers", "--from", "first", "-n", namesrv)
        reader = Child("reader", [str(PROGRAM), *reads], log_path=folder / "read", cwd=folder)
        stack.callback(reader.stop, 60)
        reader.wait_for_log("AbCd1234", START_S)
        yield Place(url, namesrv, _token(folder, url))


async def _fill(namesrv):
    async with AdminClient(namesrv) as admin:
        await admin.create_topic("orders", queue_count=4)
        for group in ("billing", LONG):
            for name in (dead_letter_topic(group), retry_topic(group)):
                await admin.create_topic(name, queue_count=1)
        await admin.create_topic(LONG, queue_count=1)
        for master in (await admin.masters()).values():
            with suppress(TopicNotExist):  # a refused request, for the page Push-back
                await master.topic_stats(f"{LONG}_missing")
        await admin.create_group(SubscriptionGroupConfig(group_name="billing"))
        options = ProducerOptions(namesrv=namesrv)
        async with Producer("shop", options=options) as producer:
            for number in range(40):
                body = b'{"number": %d, "text": "<script>alert(1)</script>"}' % number
                await producer.send(
                    Message("orders", body, tag="<b>t", keys=[f"<img/src=x>{number}"])
                )
            await producer.send(Message("orders", b"later", delay_level=18))
            for topic in (LONG, dead_letter_topic(LONG)):
                body, keys = b"AbCd1234" * 40, [f"{LONG}-0123456789abcdef"]
                await producer.send(Message(topic, body, tag="settled", keys=keys))
            for body in (b"<b>dead</b>", b"\xff\xfe binary"):
                await producer.send(Message(dead_letter_topic("billing"), body))
        await admin.reset_offsets("billing", "orders", 0)
        await admin.reset_offsets(LONG, LONG, 0, is_new_group=True)

    async def unknown(*_):
        return TransactionState.UNKNOWN

    halves = TransactionProducer(f"{LONG}_halves", namesrv, execute=unknown, check=unknown)
    async with halves:
        await halves.send_in_transaction(Message(LONG, b"half"))


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
