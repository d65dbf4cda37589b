# SPDX-License-Identifier: Apache-2.0
"""The record's contract in memory and in files, injected faults, and locations in settings."""

import pytest

from cometmq.ha.durable import OsFiles
from cometmq.ha.places.choice import open_record
from cometmq.ha.places.etcd import EtcdRecord
from cometmq.ha.places.file import FileRecord
from cometmq.ha.record import Versioned
from cometmq.remoting.errors import SettingsError
from cometmq.testing.ha.memory import MemoryPlace
from cometmq.testing.ha.port_contract import CHECKS


def existing(versioned: Versioned | None) -> Versioned:
    assert versioned
    return versioned


@pytest.fixture(params=["memory", "file"])
def ports(request, tmp_path):
    if request.param == "memory":
        place = MemoryPlace()

        async def delete():
            place.delete()

        return place.port(), place.port(), delete
    path = tmp_path / "record"

    async def unlink():
        path.unlink()

    return FileRecord(path, poll_interval_ms=5), FileRecord(path, poll_interval_ms=5), unlink


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(ports, check):
    await check(*ports)


def test_a_replaced_file_has_the_new_content_and_one_name(tmp_path):
    files = OsFiles()
    assert files.read(tmp_path / "state") is None
    files.replace(tmp_path / "state", b"one")
    files.replace(tmp_path / "state", b"two")
    assert files.read(tmp_path / "state") == b"two"
    assert {path.name for path in tmp_path.iterdir()} == {"state", "state.new"}
    assert (tmp_path / "state").stat().st_nlink == 1


# ---- locations in settings -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("file:/var/lib/cometmq/orders.json", FileRecord),
        ("etcd:10.0.0.1:2379/cometmq/orders", EtcdRecord),
        ("etcd:http://a:2379,b:2379,[::1]:2379/orders", EtcdRecord),
        ("etcd:https://a:2379/orders", EtcdRecord),
    ],
)
def test_settings_name_a_place(place, kind):
    assert isinstance(open_record(place), kind)


@pytest.mark.parametrize(
    "place",
    ["", "orders.json", "file:", "file:orders.json", "etcd:", "etcd:a:2379", "etcd:a:2379/",
     "etcd:/orders", "etcd:a/orders", "etcd:a:65536/orders", "etcd:ftp://a:1/orders",
     "zookeeper:a:2181/orders",
     "kubernetes:", "kubernetes:orders", "kubernetes:Mq/orders", "kubernetes:mq/a/b"],
)  # fmt: skip
def test_other_words_are_refused_with_the_forms_that_work(place):
    with pytest.raises(SettingsError, match="groupRecord="):
        open_record(place)


def test_a_record_in_kubernetes_needs_a_service_account():
    with pytest.raises(SettingsError, match=r"groupRecord=kubernetes:mq/orders: .*/ca\.crt"):
        open_record("kubernetes:mq/orders")
