# SPDX-License-Identifier: Apache-2.0
"""What test files leave on a server that they share."""

import asyncio

import pytest

from cometmq.client.admin import AdminClient
from cometmq.peers.forks import forked_programs
from cometmq.peers.shared import leftovers
from cometmq.peers.shared.leftovers import left_as_found
from cometmq.peers.suite import running_suite


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    with forked_programs(), running_suite(tmp_path_factory.mktemp("suite")) as suite:
        yield suite


def change(suite, *calls):
    async def change():
        async with AdminClient(suite.namesrv) as admin:
            for call in calls:
                await call(admin)

    asyncio.run(change())


def test_what_is_not_undone_fails_the_file(suite, monkeypatch):
    monkeypatch.setattr(leftovers, "DEADLINE_S", 0.1)

    def setting(value):
        broker_setting = {"maxMessageSize": value}
        change(suite, lambda it: it.broker(suite.broker).update_config(broker_setting))

    file = suite.data / "store" / "stray"
    for leave, undo, named in (
        (lambda: setting("5000000"), lambda: setting("4194304"), "maxMessageSize=5000000"),
        (file.touch, file.unlink, "stray"),
    ):
        with pytest.raises(AssertionError, match=named), left_as_found(*suite):
            leave()
        undo()
    with left_as_found(*suite):
        pass
