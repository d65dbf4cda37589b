# SPDX-License-Identifier: Apache-2.0
"""Records in etcd, tested with a server that imitates etcd's gateway and injects faults.

`tests/compat/test_etcd.py` runs the same checks with etcd itself.
"""

import asyncio
import json
from base64 import b64decode, b64encode

import pytest

from cometmq.ha.places.etcd import EtcdRecord
from cometmq.ha.port import Answer, RecordUnreachable
from cometmq.ha.record import RecordDamaged
from cometmq.remoting.errors import SettingsError
from cometmq.testing.ha.port_contract import FIRST, SECOND, new_record


@pytest.fixture
async def closed_address():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    server.close()
    await server.wait_closed()
    return address


async def test_a_member_that_is_down_is_passed_over(etcd, closed_address):
    port = EtcdRecord([closed_address, etcd.address], "/g")
    assert (await port.create(new_record())).answer is Answer.APPLIED
    found = await port.read()
    assert found
    assert found.record == new_record()


async def test_without_any_member_nothing_is_known(closed_address):
    port = EtcdRecord([closed_address], "/orders")
    with pytest.raises(RecordUnreachable, match=r"cannot read /orders from etcd: cannot connect"):
        await port.read()
    outcome = await port.create(new_record())
    assert outcome.answer is Answer.UNKNOWN
    assert outcome.reason.startswith("cannot write /orders in etcd: cannot connect")


async def test_a_read_without_a_usable_answer_goes_to_the_next_member(etcd):
    port = EtcdRecord([etcd.address, etcd.address], "/g")
    etcd.answer = b"HTTP/1.0 503 X\r\n\r\nno leader"
    with pytest.raises(RecordUnreachable, match=f"{etcd.address} answered 503: no leader"):
        await port.read()
    assert etcd.requests == ["/v3/kv/range"] * 2


async def test_a_user_logs_in_and_again_when_the_token_has_expired(etcd):
    etcd.needs_token = "one"
    port = EtcdRecord([etcd.address], "/g", login=("cometmq", "secret"))
    base = (await port.create(new_record())).written
    assert base
    etcd.needs_token = "two"
    outcome = await port.replace(base, base.record.renewed([FIRST, SECOND]))
    assert outcome.answer is Answer.APPLIED
    assert etcd.requests.count("/v3/auth/authenticate") == 2


@pytest.mark.parametrize("token", ["é", "a\nb", "\x00", " "])
async def test_a_token_that_no_header_can_carry_is_not_kept(etcd, token):
    port = EtcdRecord([etcd.address], "/g", login=("cometmq", "secret"))
    etcd.needs_token = token
    with pytest.raises(RecordUnreachable, match="answered the log-in with nonsense"):
        await port.read()
    etcd.needs_token = "one"
    assert await port.read() is None


async def test_a_wrong_password_is_named(etcd):
    etcd.needs_token = "one"
    port = EtcdRecord([etcd.address], "/g", login=("cometmq", "wrong"))
    with pytest.raises(RecordUnreachable, match="does not accept the user 'cometmq'"):
        await port.read()


async def test_a_value_that_is_no_record_is_named(etcd):
    etcd.value = b64encode(b"{}").decode()
    with pytest.raises(RecordDamaged, match="etcd, key /orders"):
        await EtcdRecord([etcd.address], "/orders").read()


async def test_the_value_is_readable_json(etcd):
    await EtcdRecord([etcd.address], "/g").create(new_record())
    assert json.loads(b64decode(etcd.value))["group"] == "orders"


@pytest.mark.parametrize(
    "endpoint", ["", "host", "host:", ":2379", "http://host", "http://host:2379", "host:65536"]
)
def test_an_endpoint_is_host_and_port(endpoint):
    with pytest.raises(SettingsError, match=f"not an address: {endpoint!r}; give host:port"):
        EtcdRecord([endpoint], "/g")
