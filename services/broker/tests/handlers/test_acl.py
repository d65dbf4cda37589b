# SPDX-License-Identifier: Apache-2.0

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cometmq.broker.acl.check import AccessControl
from cometmq.broker.acl.files import AclFiles
from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.broker import Broker
from cometmq.broker.handlers import HANDLERS, admin
from cometmq.broker.handlers.acl import MASK
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.acl import UpdateAndCreateAclConfig, UpdateGlobalWhiteAddrsConfig
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import CommandError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.worker import Worker
from cometmq.testing.broker import expected_answer, memory_broker, replay
from cometmq.testing.broker.replay import serve
from cometmq.testing.remoting.golden import Exchange, load_exchanges
from cometmq.testing.remoting.peer import FakePeer

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
ACCOUNTS = """\
accounts:
- accessKey: adminKey1
  secretKey: adminSecret1
  admin: true
- accessKey: userKey1
  secretKey: userSecret1
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - AclTopic=PUB|SUB
  - AclReadOnly=SUB
  groupPerms:
  - AclDenied=DENY
"""


def exchanges(pattern: str, *, is_on: bool) -> list[Exchange]:
    return [
        one for one in load_exchanges(GOLDEN, pattern) if ("AccessKey" in one.request.ext) is is_on
    ]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = memory_broker(storePathRootDir=str(tmp_path))
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    files = AclFiles(path, clock_ms=broker.clock.now_ms, log=NO_LOG)
    worker = Worker("test-acl")
    broker.admission.acl = AclKeeper(
        files, AccessControl(files.load(), clock_ms=lambda: 0), worker=worker, log=NO_LOG
    )
    yield broker
    worker.close()


def accounts(broker: Broker) -> dict[str, object]:
    assert broker.admission.acl is not None
    return dict(broker.admission.acl.control.accounts.by_key)


async def ask(broker: Broker, code: int, header: msgspec.Struct) -> tuple[int, str | None]:
    try:
        result = HANDLERS[code](broker, Call(code, header, peer=FakePeer()))
        reply = await result  # type: ignore[misc]
    except CommandError as error:
        return error.code, error.remark
    assert isinstance(reply, Reply)
    return reply.code, reply.remark


@pytest.mark.parametrize("exchange", exchanges("050-*.jsonl", is_on=True), ids=lambda one: one.name)
async def test_captured_changes_of_accounts(broker: Broker, exchange: Exchange) -> None:
    answer = await replay(broker, exchange, HANDLERS[50])
    expected = expected_answer(exchange)

    assert (answer.code, answer.remark) == (expected.code, expected.remark)
    assert ("otherKey1" in accounts(broker)) is (expected.code == 0)


@pytest.mark.parametrize("exchange", exchanges("051-*.jsonl", is_on=True), ids=lambda one: one.name)
async def test_captured_deletions(broker: Broker, exchange: Exchange) -> None:
    new = UpdateAndCreateAclConfig(access_key="otherKey1", secret_key="otherSecret1")
    assert await ask(broker, 50, new) == (0, None)

    answer = await replay(broker, exchange, HANDLERS[51])
    expected = expected_answer(exchange)

    assert (answer.code, answer.remark) == (expected.code, expected.remark)
    assert ("otherKey1" in accounts(broker)) is (expected.code != 0)


@pytest.mark.parametrize("exchange", exchanges("053-*.jsonl", is_on=True), ids=lambda one: one.name)
async def test_captured_changes_of_white_addresses(broker: Broker, exchange: Exchange) -> None:
    answer = await replay(broker, exchange, HANDLERS[53])

    assert (answer.code, answer.remark) == (0, None)
    assert broker.admission.acl is not None
    (white,) = broker.admission.acl.control.accounts.white_addresses
    assert white.text == "10.9.9.*"


@pytest.mark.parametrize("exchange", exchanges("052-*.jsonl", is_on=True), ids=lambda one: one.name)
async def test_captured_queries_of_versions(
    broker: Broker, exchange: Exchange, tmp_path: Path
) -> None:
    answer = await replay(broker, exchange, HANDLERS[52])
    expected = expected_answer(exchange)

    assert set(answer.ext) == set(expected.ext)
    assert answer.ext["brokerName"] == expected.ext["brokerName"]
    assert answer.ext["clusterName"] == expected.ext["clusterName"]
    ours, theirs = (yaml.safe_load(it.ext["version"]) for it in (answer, expected))
    assert set(ours) == set(theirs)
    ours, theirs = (yaml.safe_load(it.ext["allAclFileVersion"]) for it in (answer, expected))
    assert list(ours) == [str(tmp_path / "plain_acl.yml")]
    assert [set(it) for it in ours.values()] == [set(it) for it in theirs.values()]


@pytest.mark.parametrize("exchange", exchanges("054-*.jsonl", is_on=True), ids=lambda one: one.name)
async def test_captured_queries_of_accounts(broker: Broker, exchange: Exchange) -> None:
    white = msgspec.json.decode(expected_answer(exchange).body)["globalWhiteAddrs"]
    header = UpdateGlobalWhiteAddrsConfig(global_white_addrs=",".join(white))
    assert await ask(broker, 53, header) == (0, None)

    peer = FakePeer()
    peer.is_encrypted = True
    answer = await replay(broker, exchange, HANDLERS[54], peer)
    assert answer.body == expected_answer(exchange).body


@pytest.mark.parametrize("exchange", exchanges("054-*.jsonl", is_on=True), ids=lambda one: one.name)
async def test_secrets_are_masked_without_tls(broker: Broker, exchange: Exchange) -> None:
    answer = msgspec.json.decode((await replay(broker, exchange, HANDLERS[54])).body)
    secrets = {account["secretKey"] for account in answer["plainAccessConfigs"]}
    assert secrets == {MASK}
    put = UpdateAndCreateAclConfig(access_key="userKey1", secret_key=MASK)
    code, remark = await ask(broker, 50, put)
    assert (code, "length should longer than 6" in (remark or "")) == (209, True)


@pytest.mark.parametrize(("code", "failed"), [(50, 209), (51, 210), (53, 211), (52, 1), (54, 1)])
async def test_without_access_control_everything_is_refused(code: int, failed: int) -> None:
    captured = exchanges(f"0{code}-*.jsonl", is_on=False) or exchanges(
        f"0{code}-*.jsonl", is_on=True
    )
    assert captured
    for exchange in captured:
        answer = await replay(memory_broker(), exchange, HANDLERS[code])
        assert answer.code == failed
        assert "aclEnable=false" in (answer.remark or "")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "The accessKey=null and secretKey=null cannot be null"),
        ({"topic_perms": "A"}, "Parse Resource format error for A."),
        ({"topic_perms": ""}, "Parse Resource format error for ."),
        ({"group_perms": "G=ALL"}, "Parse resource permission error for G=ALL."),
        ({"white_remote_address": "nowhere"}, "Netaddress examine Exception"),
    ],
)
async def test_wrong_accounts_are_refused(
    broker: Broker, fields: dict[str, Any], complaint: str
) -> None:
    keys: dict[str, Any] = (
        {"access_key": "otherKey1", "secret_key": "otherSecret1"} if fields else {}
    )
    code, remark = await ask(broker, 50, UpdateAndCreateAclConfig(**keys, **fields))
    assert code == 209
    assert complaint in (remark or "")
    assert "otherKey1" not in accounts(broker)


async def test_wrong_white_addresses_are_refused(broker: Broker, tmp_path: Path) -> None:
    missing = await ask(broker, 53, UpdateGlobalWhiteAddrsConfig())
    assert missing == (211, "The globalWhiteAddresses[null] has been updated failed.")
    elsewhere = UpdateGlobalWhiteAddrsConfig("10.0.0.1", str(tmp_path / "other.yml"))
    assert await ask(broker, 53, elsewhere) == (
        211, "The globalWhiteAddresses[10.0.0.1] has been updated failed.",
    )  # fmt: skip
    code, remark = await ask(broker, 53, UpdateGlobalWhiteAddrsConfig("10.0.0"))
    assert code == 211
    assert "Netaddress examine Exception netaddress is 10.0.0" in (remark or "")
    assert (tmp_path / "plain_acl.yml").read_text() == ACCOUNTS


def test_every_code_of_access_control_is_served() -> None:
    codes = {code for code in Code if "ACL" in code.name or "WHITE_ADDRS" in code.name}
    assert codes == set(HANDLERS) & codes
    assert len(codes) == 5


async def test_the_figures_name_a_broken_account_file(broker: Broker, tmp_path: Path) -> None:
    assert broker.admission.acl is not None
    (tmp_path / "commitlog").mkdir()
    for broken in (None, tmp_path / "plain_acl.yml"):
        broker.admission.acl.broken = broken
        call = Call(Code.GET_BROKER_RUNTIME_INFO, NoHeader(), peer=FakePeer())
        reply = await serve(broker, call, admin.get_broker_runtime_info)
        table = decode_json(KVTable, bytes(reply.body)).table  # type: ignore[arg-type]
        assert table.get("accountsBroken") == (broken and str(broken))
        assert "accountsMisspelt" not in table


async def test_the_figures_name_a_misspelt_account_file(broker: Broker, tmp_path: Path) -> None:
    assert broker.admission.acl is not None
    (tmp_path / "commitlog").mkdir()
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS.replace("accounts:", "accountz: []\naccounts:"))
    files = AclFiles(path, clock_ms=broker.clock.now_ms, log=NO_LOG)
    broker.admission.acl.control.accounts = files.load()
    call = Call(Code.GET_BROKER_RUNTIME_INFO, NoHeader(), peer=FakePeer())
    reply = await serve(broker, call, admin.get_broker_runtime_info)
    table = decode_json(KVTable, bytes(reply.body)).table  # type: ignore[arg-type]
    assert table["accountsMisspelt"] == str(path)
