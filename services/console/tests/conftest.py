# SPDX-License-Identifier: Apache-2.0
import traceback
from contextlib import AsyncExitStack
from functools import partial

import pytest

from cometmq.client import AdminClient, Message, Producer
from cometmq.insight.snapshot import look
from cometmq.peers.forks import forked_programs
from cometmq.peers.shared.leftovers import left_as_found
from cometmq.peers.shared.patience import patience
from cometmq.peers.suite import running_suite

from .desks import Sites
from .message_pages import TOPIC
from .suites import console, started


class FaultLog:
    """Prints the exception of a request that a bug has ended, so that the test shows it."""

    def error(self, _event, *, exc_info, **_):
        traceback.print_exception(exc_info)


@pytest.fixture(autouse=True, scope="module")
def fork_programs():
    """Fork the suites that tests start."""
    with forked_programs():
        yield


@pytest.fixture
async def sites(tmp_path):
    async with AsyncExitStack() as stack:
        yield Sites(tmp_path, stack)


@pytest.fixture(scope="session")
def shared_plain_suite(tmp_path_factory):
    with running_suite(tmp_path_factory.mktemp("plain-suite")) as suite:
        yield suite


@pytest.fixture(scope="module")
def plain_suite(shared_plain_suite):
    """Return the suite of all files, each of which leaves it as it found it."""
    with left_as_found(*shared_plain_suite):
        yield shared_plain_suite


@pytest.fixture
async def plain_admin(plain_suite):
    async with AdminClient(plain_suite.namesrv) as admin:
        yield admin


@pytest.fixture
async def live(sites, plain_admin):
    """Return a console of the running suite, which takes a new snapshot for every request."""
    site = sites(admin=plain_admin)

    async def fresh():
        return await look(plain_admin)

    site.desk.snapshot = fresh
    site.desk.log = FaultLog()
    return site


@pytest.fixture(scope="session")
def shared_suite(tmp_path_factory):
    child, suite = started(tmp_path_factory.mktemp("suite"))
    with patience(suite.namesrv, suite.broker):
        yield suite
    child.stop(60)


@pytest.fixture(scope="module")
def suite(shared_suite):
    """Return the suite with access control; each file leaves it as it found it."""
    it = shared_suite
    with left_as_found(it.namesrv, it.broker, it.data, it.options):
        yield it


@pytest.fixture
async def desk(suite, tmp_path):
    async with AsyncExitStack() as stack:
        yield await console(suite, tmp_path / "console", stack)


@pytest.fixture
def start_console(tmp_path):
    return partial(console, folder=tmp_path / "other")


@pytest.fixture
async def send(plain_suite, plain_admin):
    """Return a function that stores a message and returns its id."""
    await plain_admin.create_topic(TOPIC, queue_count=1)
    async with Producer("paged-producers", namesrv=plain_suite.namesrv) as producer:

        async def send(body=b"text", topic=TOPIC, **more):
            return (await producer.send(Message(topic, body, **more))).message_id

        yield send
