# SPDX-License-Identifier: Apache-2.0
"""Pages beside a broker without usable answers show the other brokers, and name this one."""

import pytest

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.insight.snapshot import look
from cometmq.peers.fakes import Fakes, body, hang
from cometmq.remoting.bodies.stats import ConsumeStats
from cometmq.remoting.errors import ServerError

from .conftest import FaultLog
from .desks import ADMIN, JSON

TIMEOUT_MS = 1_000
ASKED = (
    "get_broker_config", "get_all_topic_config", "get_all_subscriptiongroup_config",
    "get_topic_stats_info", "get_consume_stats", "query_topic_consume_by_who",
    "get_consumer_connection_list", "get_all_consumer_offset",
)  # fmt: skip
"""All but the broker's runtime statistics, by which it looks healthy."""


def refuse(*_):
    raise ServerError("java.lang.NullPointerException")


@pytest.mark.parametrize(("path", "name"), [("/topic", "T"), ("/group", "G"), ("/definitions", "")])
@pytest.mark.parametrize("lie", [body(b"{{{"), hang, refuse], ids=["lies", "hangs", "refuses"])
async def test_pages_name_the_broker_that_they_lack(sites, path, name, lie):
    asked = []

    def count(broker, call):
        asked.append(call.code)
        return lie(broker, call)

    async with Fakes() as fakes:
        honest = {"get_consume_stats": body(ConsumeStats())}
        await fakes.start("a", **honest)
        await fakes.start("b", **honest)
        options = ClientOptions(namesrv=fakes.namesrv, api_timeout_ms=TIMEOUT_MS)
        async with AdminClient(options=options) as admin:
            site = sites(admin=admin)
            site.desk.log = FaultLog()
            before = await look(admin)

            async def kept():
                return before

            site.desk.snapshot = kept
            await fakes.start("b", **dict.fromkeys(ASKED, count))
            params = {"name": name} if name else {}
            shown = await site.web.get(path, params=params, headers={**JSON, **ADMIN})
            page = await site.web.get(path, params=params, headers=ADMIN)
    assert shown.status_code == 200, shown.text
    assert set(shown.json()["unanswered"]) == {"b"}
    assert page.status_code == 200
    assert "lacks the part" in page.text
    assert len(asked) == 2, "each page asks the broker once"


async def test_an_export_lacks_no_broker(sites):
    async with Fakes() as fakes:
        await fakes.start("a")
        await fakes.start("b", get_all_topic_config=body(b"{{{"))
        async with AdminClient(fakes.namesrv) as admin:
            site = sites(admin=admin)
            found = await site.web.get("/definitions?download=1", headers={**JSON, **ADMIN})
    assert found.status_code == 502, found.text
    assert "broker b gives an answer" in found.text
