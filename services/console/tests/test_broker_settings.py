# SPDX-License-Identifier: Apache-2.0
"""The settings that differ between brokers: a row per setting, a column per broker."""

from typing import Any

import pytest

from cometmq.client.admin.figures import read_figures
from cometmq.insight.model import Broker, BrokerState, Disk
from cometmq.remoting.bodies.settings import BrokerSetting
from cometmq.remoting.errors import RequestCodeNotSupported, ServerError

from .desks import JSON, FakeAdmin, snapshot

SOURCE = "file broker.conf:3"
TABLES: dict[str, Any] = {
    "10.0.0.0:10911": [BrokerSetting("fileReservedTime", "48", "72", SOURCE),
                       BrokerSetting("brokerName", "a", "", "default")],
    "10.0.0.1:10911": [BrokerSetting("fileReservedTime", "72", "72", "default"),
                       BrokerSetting("brokerName", "b", "", "default")],
    "10.0.0.2:10911": {"fileReservedTime": "71", "accessKey": "hush"},
    "10.0.0.3:10911": None,
}  # fmt: skip


class ToldSettings:
    def __init__(self, table):
        self._table = table

    async def settings(self):
        if self._table is None:
            raise ServerError("it is full")
        if isinstance(self._table, dict):
            raise RequestCodeNotSupported("request type 30006 not supported")
        return self._table

    async def config(self):
        return self._table


class Admin(FakeAdmin):
    def broker(self, address, **_):
        return ToldSettings(TABLES[address])


@pytest.fixture
def site(sites):
    site = sites(admin=Admin())
    state = BrokerState(read_figures({}), Disk(0.1))
    brokers = [Broker("c", name, 0, f"10.0.0.{n}:10911", state) for n, name in enumerate("abcd")]
    other = Broker("other", "z", 0, "10.0.0.9:10911", state)
    site.snapshot = snapshot(site.clock, brokers=[*brokers, other])
    return site


async def test_brokers_of_a_cluster_are_compared(site):
    page = (await site.web.get("/brokers/settings?cluster=c")).text
    for text in ("fileReservedTime", "a:0", "b:0", "c:0", ">48<", ">72<", ">71<", "it is full"):
        assert text in page
    assert "brokerName" not in page
    assert "n:9876" in page, "the head names the cluster as on every page"
    assert "config diff -c c" in page
    answer = (await site.web.get("/brokers/settings?cluster=c", headers=JSON)).json()["data"]
    assert answer["brokers"] == ["a:0", "b:0", "c:0"]
    (row,) = answer["differences"]
    assert row["settings"]["a:0"]["source"] == SOURCE
    assert row["settings"]["c:0"] == {
        "name": "fileReservedTime", "value": "71", "default": None, "source": None,
    }  # fmt: skip
    assert (await site.web.get("/brokers/settings?cluster=nope")).status_code == 404


async def test_a_broker_shows_defaults_and_sources_or_that_it_does_not_tell_them(site):
    page = (await site.web.get("/broker/settings?name=a")).text
    assert SOURCE in page
    assert "b:0=72, c:0=71" in page
    page = (await site.web.get("/broker/settings?name=c")).text
    assert "tells only the values of its settings" in page
    assert "hush" not in page
