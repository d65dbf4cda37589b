# SPDX-License-Identifier: Apache-2.0
"""With access control, the lane serves only requests that `AccessControl.check` allows, and all
plain ones that official clients sign.
"""

import asyncio
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.acl.check import NO_RULES, AccessControl, Rules
from cometmq.broker.handlers import HANDLERS
from cometmq.broker.native import IS_BUILT
from cometmq.peers.long_forms import examples, seeds
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion, SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import ServerError
from cometmq.remoting.header import decode_header
from cometmq.remoting.names import HALF_TOPIC, TRACE_TOPIC
from cometmq.remoting.signature import SessionCredentials, Signer, signing
from cometmq.runtime.acl.accounts import Account, Accounts
from cometmq.runtime.acl.addresses import Addresses
from cometmq.testing.broker.scripted import ScriptedBroker, frames_of
from cometmq.testing.broker.scripts import Step, frame
from cometmq.testing.remoting.golden import load_exchanges
from cometmq.testing.remoting.peer import FakePeer

from . import pull_runs, pull_script, send_runs, send_script

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
USER = AclAccount("userKey1", secret_key="userSecret1", default_topic_perm="PUB|SUB",
                  default_group_perm="SUB")  # fmt: skip
ADMIN = AclAccount("adminKey1", secret_key="adminSecret1", admin=True)
TOPICS = ("Orders", "Payments", TRACE_TOPIC, "%RETRY%g", "Zähler", HALF_TOPIC)
GROUPS = ("g", "h", "grüße", "%RETRY%g")
RIGHTS = ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY", "ANY", None)
PULL = {
    "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0",
    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip
SEND = {
    "a": "p", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0",
    "g": "1700000000000", "h": "0", "i": "UNIQ_KEY\x01A", "j": "0", "k": "false", "m": "false",
}  # fmt: skip


def accounts_of(accounts: Iterable[AclAccount], *white: str) -> Accounts:
    built = [Account(account) for account in accounts]
    return Accounts(built, [Addresses(one) for one in white], version=DataVersion(), versions={})


def signed(ext: dict[str, str], body: bytes = b"", account: AclAccount = USER) -> dict[str, str]:
    fields = dict(ext)
    credentials = SessionCredentials(account.access_key, account.secret_key or "")
    signing(credentials)(0, fields, body)
    return fields


def call_of(data: bytes) -> Call[Any] | None:
    """Return the call that a frame makes; None if it makes none."""
    connection = Connection(Codec(COMMANDS), FakePeer())
    calls = connection.receive(data, 0)
    return calls[0] if calls and not connection.faults else None


class Guarded:
    """A broker with access control whose lane knows all topics, and every reader of its pulls."""

    def __init__(self, root: str, accounts: Accounts, **options: Any) -> None:
        names: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        self.scripted = ScriptedBroker(accounts=accounts, **names, **options)
        self.broker = self.scripted.broker
        assert self.broker.admission.acl is not None
        self.control = self.broker.admission.acl.control
        for topic in (*TOPICS, "AclTopic", "AclReadOnly"):
            self.broker.tables.topics.create(topic, queue_nums=8)
        self.peer, self.wire = self.scripted.connect()

    @property
    def lane(self) -> Any:
        assert self.scripted.lane is not None
        return self.scripted.lane

    def takes(self, data: bytes) -> bool:
        """Return whether the lane takes a frame."""
        call = call_of(data)
        self.lane.stage(self.peer, b"", 1)  # adopts changes
        for topic in self.broker.tables.topics.table.values():
            self.lane.learn(topic)
        if call is not None and call.code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
            self.lane.learn_pull(call, SubscriptionGroupConfig(call.header.consumer_group), None)
        parts = self.lane.stage(self.peer, data, 1)
        self.lane.drop()
        return any(part[0] for part in parts or ())

    def allows(self, data: bytes) -> bool:
        """Return whether the handlers' check allows a frame."""
        call = call_of(data)
        if call is None:
            return False
        try:
            self.control.check(None, call)
        except ServerError:
            return False
        return True


def any_account(rng: random.Random, number: int) -> AclAccount:
    def rights(names: Iterable[str]) -> list[str]:
        return [f"{name}={rng.choice(RIGHTS)}" for name in names if rng.random() < 0.4]

    return AclAccount(
        f"account{number}",
        secret_key=rng.choice(["secret-of-all", f"secret{number}", "geheim-ßß", "s" * 100]),
        admin=rng.random() < 0.2,
        default_topic_perm=rng.choice(RIGHTS),
        default_group_perm=rng.choice(RIGHTS),
        topic_perms=rights(TOPICS),
        group_perms=rights(GROUPS),
        white_remote_address=rng.choice([None, None, None, "10.0.0.*", "127.0.0.1", "fd00::1-9"]),
    )


def any_request(rng: random.Random) -> tuple[int, dict[str, str], bytes]:
    body = rng.randbytes(rng.choice([0, 1, 60, 700]))
    if rng.random() < 0.5:
        properties = rng.choice(["UNIQ_KEY\x01A\x02WAIT\x01true", 'x\x01"ü\\/€😀\n', "DELAY\x013",
                                 "TRAN_MSG\x01true\x02PGROUP\x01g"])  # fmt: skip
        return 310, {**SEND, "b": rng.choice(TOPICS), "i": properties}, body
    ext = {"consumerGroup": rng.choice(GROUPS), "topic": rng.choice(TOPICS), **PULL}
    ext["subscription"] = rng.choice(["*", "TagA || TagB", "größe", 'a"b', "a\\b"])
    return rng.choice([11, 11, 361]), ext, rng.choice([b"", b"", body])


def spoil(
    rng: random.Random, ext: dict[str, str], body: bytes
) -> tuple[dict[str, str], bytes, bool]:
    """Change a signed request; return it, and whether it is still plain and signed correctly."""
    signature = ext["Signature"]
    name = rng.choice([name for name in ext if name not in {"AccessKey", "Signature"}])
    change = rng.randrange(16)
    match change:
        case 0:
            ext["Signature"] = signature[: rng.randrange(len(signature))]
        case 1:
            at = rng.randrange(len(signature))
            ext["Signature"] = signature[:at] + rng.choice("Ab1+/= ") + signature[at + 1 :]
        case 2:
            ext["Signature"] = signature + rng.choice(["=", "A", " ", "\n", "\0"])
        case 3:
            del ext[rng.choice(["Signature", "AccessKey"])]
        case 4:
            ext["AccessKey"] = rng.choice(["account0", "account1", "nobody12", "", "Account0"])
        case 5:
            ext[rng.choice(["extra", "SecurityToken", "n", "z", "_UNIQUE_KEY_QUERY"])] = "x"
        case 6:
            ext[name] = rng.choice(["", "0", "1", "x", ext[name] + "0"])
        case 7:
            body += b"x"
        case 8:
            body = b""
        case 9:
            ext["cometmqForwarded"] = "1"
        case 10:
            ext[name.upper()] = ext.pop(name)
        case 11:
            ext["signature"] = ext.pop("Signature")
        case 12:
            ext["SecurityToken"], ext["AccessKey"] = ext["AccessKey"][4:], ext["AccessKey"][:4]
        case _:
            return ext, body, True
    return ext, body, False


def repeat_field(rng: random.Random, data: bytes) -> bytes:
    """Return a JSON frame in which a field occurs a second time."""
    field = rng.choice([b'"AccessKey":"account1",', b'"Signature":"",', b'"b":"Payments",',
                        b'"topic":"Orders",', b'"consumerGroup":"h",'])  # fmt: skip
    head, rest = data[8:].split(b'"extFields":{', 1)
    grown = len(field)
    size, word = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
    lengths = (size + grown).to_bytes(4, "big") + (word + grown).to_bytes(4, "big")
    return lengths + head + b'"extFields":{' + field + rest


def check_requests(
    guarded: Guarded, rng: random.Random, accounts: list[AclAccount], old: list[AclAccount]
) -> None:
    """Compare both paths for a few requests, some of them by `old` accounts."""
    for _ in range(40):
        account = rng.choice(accounts + old)
        code, ext, body = any_request(rng)
        if rng.random() < 0.2:
            ext["SecurityToken"] = "token"
        if rng.random() < 0.5:
            ext = dict(rng.sample(list(ext.items()), len(ext)))
        secret = account.secret_key if rng.random() < 0.9 else "another secret"
        ext = {"AccessKey": account.access_key, **ext}
        ext["Signature"] = Signer(secret or "").sign(ext, body)
        ext, body, is_plain = spoil(rng, ext, body)
        if rng.random() < 0.3:
            ext = dict(rng.sample(list(ext.items()), len(ext)))
        is_binary = rng.random() < 0.5
        data = frame(code, ext, body, is_binary=is_binary, is_ascii=rng.random() < 0.2)
        if not is_binary and rng.random() < 0.1:
            data, is_plain = repeat_field(rng, data), False
        is_taken, is_allowed = guarded.takes(data), guarded.allows(data)
        assert is_allowed or not is_taken, (ext, body, account)
        topic = ext.get("b", ext.get("topic", ""))
        is_plain &= (topic.isascii() or code != 310) and account not in old
        is_plain &= data.isascii() or is_binary or b"\\u" not in data
        if is_plain and secret == account.secret_key and has_plain_rights(account, code, ext):
            has_escapes = code != 310 and not is_binary and b"\\" in data
            assert is_taken or has_escapes or topic in {HALF_TOPIC, "%RETRY%g"}, (ext, account)


def has_plain_rights(account: AclAccount, code: int, ext: dict[str, str]) -> bool:
    """Return whether an account has all rights to a request, without any exception."""
    control = AccessControl(accounts_of([account]), clock_ms=lambda: 0)
    call = call_of(frame(code, signed(ext, account=account)))
    if call is None or account.white_remote_address is not None:
        return False
    if ext.get("b") == TRACE_TOPIC:  # needs no right, which is left to Python
        return False
    try:
        control.check(None, call)
    except ServerError:
        return False
    return True


@examples(8, long=30)
@given(seed=st.integers(0, 2**32))
def test_the_lane_takes_only_what_the_check_allows(seed: int) -> None:
    rng = random.Random(seed)  # repeats a run, hides nothing
    accounts = [any_account(rng, number) for number in range(4)]
    white = rng.choice(["", "", "", "10.*.*.*", "127.0.0.1", "fd00:*:*:*:*:*:*:*"])

    async def main(root: str) -> None:
        guarded = Guarded(root, accounts_of(accounts, white))
        check_requests(guarded, rng, accounts, [])
        changed = [any_account(rng, number) for number in range(4)]
        guarded.control.accounts = accounts_of(changed)
        check_requests(guarded, rng, changed, accounts)

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


def test_the_lane_takes_what_official_clients_have_signed() -> None:
    user = AclAccount(
        "userKey1", secret_key="userSecret1", default_group_perm="SUB",
        group_perms=["AclDenied=DENY"], topic_perms=["AclTopic=PUB|SUB", "AclReadOnly=SUB"],
    )  # fmt: skip
    served = {Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.PULL_MESSAGE}
    exchanges = [
        one
        for pattern in ("*MESSAGE*.jsonl", "acl.jsonl")
        for one in load_exchanges(GOLDEN, pattern)
        if one.request.code in served and one.request.ext.get("AccessKey")
    ]

    async def main(root: str) -> list[tuple[bool, bool, str]]:
        guarded = Guarded(root, accounts_of([user]))
        return [
            (guarded.takes(one.request.data), guarded.allows(one.request.data), one.name)
            for one in exchanges
        ]

    with tempfile.TemporaryDirectory() as root:
        seen = asyncio.run(main(root))
    assert sum(is_allowed for _, is_allowed, _ in seen) >= 8
    assert [name for is_taken, is_allowed, name in seen if is_taken != is_allowed] == []


class Signing:
    """Signs the requests of a script like clients of several accounts; a few wrongly."""

    ACCOUNTS = accounts_of([
        ADMIN, USER,
        AclAccount("reader01", secret_key="readSecret1", default_topic_perm="SUB",
                   default_group_perm="SUB", topic_perms=["Payments=DENY"]),
    ])  # fmt: skip

    def __init__(self, oddity: float) -> None:
        self._rng = random.Random(1)  # repeats a run, hides nothing
        self._oddity = oddity

    def frame(self, code: int, ext: dict[str, str], body: bytes = b"", **options: Any) -> bytes:
        rng = self._rng
        known = [one.config for one in self.ACCOUNTS.by_key.values()]
        account = USER if code in {310, 320, 11, 361} else ADMIN
        is_odd = rng.random() < self._oddity
        fields = signed(ext, body, rng.choice(known) if is_odd else account)
        if is_odd and rng.random() < 0.5:
            fields, body, _ = spoil(rng, fields, body) if ext else (ext, body, False)
        return frame(code, fields, body, **options)


def refused(broker: ScriptedBroker) -> dict[str, Any]:
    assert broker.broker.admission.acl is not None
    return {"refused": broker.broker.admission.acl.control.refused_count}


async def play_sends(broker: ScriptedBroker, steps: list[Step]) -> None:
    """Play steps, some of which change the accounts."""
    for step in steps:
        if step.action == "accounts":
            assert broker.broker.admission.acl is not None
            known = Signing.ACCOUNTS.by_key.values()
            few = list(known)[: step.amount]
            broker.broker.admission.acl.control.accounts = accounts_of(one.config for one in few)
        else:
            await send_runs.play(broker, [step])


@pytest.mark.parametrize("oddity", [0, 0.3])
@seeds(1, long=3)
def test_signed_sends_give_the_same_broker(
    monkeypatch: pytest.MonkeyPatch, seed: int, oddity: float
) -> None:
    monkeypatch.setattr(send_script, "frame", Signing(oddity).frame)
    script = send_script.Script(seed, oddity=oddity)
    steps = script.write(turns=30)
    if oddity:
        for at in script.rng.sample(range(len(steps)), 8):
            steps.insert(at, Step("accounts", amount=at % 4))
    case = send_runs.Case({}, accounts=Signing.ACCOUNTS)
    options: Any = {"player": play_sends, "more": refused}
    without, _ = send_runs.run(case, steps, lane=False, **options)
    for is_direct in (False, True):
        found, count = send_runs.run(case, steps, lane=True, is_direct=is_direct, **options)
        for name, value in without.items():
            if name == "answers":
                for one, other in zip(value, found[name], strict=True):
                    assert frames_of(other) == frames_of(one)
            assert found[name] == value, name
        assert count > (0 if oddity else 0.95 * script.plain_count)


@pytest.mark.usefixtures("whole_searches")
@pytest.mark.parametrize("oddity", [0, 0.3])
@seeds(1, long=3)
def test_signed_pulls_give_the_same_broker(
    monkeypatch: pytest.MonkeyPatch, seed: int, oddity: float
) -> None:
    monkeypatch.setattr(pull_script, "frame", Signing(oddity).frame)
    script = pull_script.Script(seed, oddity=oddity)
    count, _ = pull_runs.compare({}, script.write(turns=30), Signing.ACCOUNTS)
    assert count > (0 if oddity else 0.4 * script.pull_count)


def codes(sent: bytes) -> list[int]:
    return [decode_header(serialization, head).code for serialization, head, _ in frames_of(sent)]


@pytest.mark.parametrize("is_direct", [False, True])
def test_changed_accounts_count_from_the_next_request_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch, *, is_direct: bool
) -> None:
    def revoke(broker: Any, _call: Call[Any]) -> Reply:
        broker.admission.acl.control.accounts = accounts_of([ADMIN])
        return Reply(ResponseCode.SUCCESS)

    monkeypatch.setitem(HANDLERS, Code.GET_BROKER_RUNTIME_INFO, revoke)
    send = frame(310, signed(SEND, b"x"), b"x")
    pull = frame(11, signed({"consumerGroup": "g", "topic": "Orders", **PULL}))
    change = frame(int(Code.GET_BROKER_RUNTIME_INFO), signed({}, account=ADMIN))

    async def main(root: str) -> list[list[int]]:
        guarded = Guarded(root, accounts_of([ADMIN, USER]), is_direct=is_direct)
        seen = []
        for data in (send, send, pull, send + pull, send + pull + change + send + pull):
            guarded.wire.sent.clear()
            guarded.scripted.receive(guarded.peer, data)
            await guarded.scripted.settle()
            seen.append(sorted(codes(bytes(guarded.wire.sent))))
        assert guarded.lane.request_count >= 2
        assert guarded.lane.pull_count >= 1
        assert guarded.control.refused_count == 2
        return seen

    with tempfile.TemporaryDirectory() as root:
        *_, both, last = asyncio.run(main(root))
    assert both == [0, 0]
    assert last == [0, 0, 0, 1, 1]


def test_what_needs_no_signature_is_left_to_the_handlers() -> None:
    """Requests from white addresses, the ends of transactions, and renewals of locks."""
    queue = b'{"brokerName":"b","queueId":0,"topic":"Orders"}'
    lock = frame(41, {}, b'{"clientId":"c","consumerGroup":"g","mqSet":[' + queue + b"]}")
    half = frame(310, signed({**SEND, "i": "TRAN_MSG\x01true\x02PGROUP\x01p"}, b"x"), b"x")
    end = {"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0",
           "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "A"}  # fmt: skip

    async def main(root: str) -> None:
        guarded = Guarded(root, accounts_of([USER], "127.0.0.1"))
        assert not guarded.takes(frame(310, SEND, b"x"))
        assert guarded.takes(frame(310, signed(SEND, b"x"), b"x"))
        for data in (half, half, lock, lock):
            guarded.scripted.receive(guarded.peer, data)
            await guarded.scripted.settle()
        assert set(codes(bytes(guarded.wire.sent))) == {0}
        guarded.control.accounts = accounts_of([USER])  # the address is not white any more
        for data in (lock, frame(37, end, flag=2), frame(37, signed(end), flag=2)):
            assert not guarded.takes(data)

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        (NO_RULES, "native"),
        (Rules(is_rocketmq_4=True), "python: aclRocketmq4Rights=true"),
        (Rules(signed_age_ms_max=1000), "python: aclSignedAgeMax is set"),
    ],
)
def test_rules_that_native_code_does_not_know_turn_the_lane_off(rules: Rules, path: str) -> None:
    async def main(root: str) -> str:
        options: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        broker = ScriptedBroker(accounts=accounts_of([USER]), rules=rules, **options)
        return broker.broker.process.send_path

    with tempfile.TemporaryDirectory() as root:
        assert asyncio.run(main(root)) == path
