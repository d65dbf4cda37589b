# SPDX-License-Identifier: Apache-2.0
"""The answer to "may X do Y?" is what the broker decides when X does it."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.broker.acl.check import AccessControl
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call, Request
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import ServerError
from cometmq.remoting.names import HALF_TOPIC, TRACE_TOPIC, retry_topic
from cometmq.remoting.signature import SessionCredentials, signing
from cometmq.runtime.acl.accounts import Account, Accounts
from cometmq.runtime.acl.verdict import Deed, exempt_addresses, verdict
from cometmq.testing.remoting.peer import FakePeer

KEY, SECRET = "userKey1", "userSecret1"
NAMES = ("orders", "else", retry_topic("team"), TRACE_TOPIC, HALF_TOPIC)
RIGHTS = ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY", "nonsense")
SEND = {"a": "P", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}


def received(code: int, ext: dict[str, str], body: bytes = b"") -> Call[Any]:
    signing(SessionCredentials(KEY, SECRET))(code, ext, body)
    codec = Codec(COMMANDS)
    sender, receiver = Connection(codec, FakePeer()), Connection(codec, FakePeer())
    sender.send(Request(code, None, body, ext))
    return receiver.receive(bytes(sender.take()), 0)[0]


def call_of(deed: Deed, name: str) -> Call[Any]:
    if deed is Deed.SEND:
        return received(Code.SEND_MESSAGE_V2, {**SEND, "b": name})
    if deed is Deed.READ:
        # not a pull: it needs the right to a group, too
        fields = {"topic": name, "key": "k", "maxNum": "1", "beginTimestamp": "0"}
        return received(Code.QUERY_MESSAGE, {**fields, "endTimestamp": "1"})
    beat = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"{name}"}}]}}'
    return received(Code.HEART_BEAT, {}, beat.encode())


def is_allowed(account: AclAccount, call: Call[Any]) -> bool:
    found = Accounts([Account(account)], version=DataVersion(), versions={})
    try:
        AccessControl(found, clock_ms=lambda: 0).check(None, call)
    except ServerError:
        return False
    return True


def rights_of(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    one = st.builds("{}={}".format, st.sampled_from(names), st.sampled_from(RIGHTS))
    return st.lists(one, max_size=3)


accounts = st.builds(
    AclAccount,
    st.just(KEY),
    admin=st.booleans(),
    secret_key=st.just(SECRET),
    default_topic_perm=st.sampled_from(RIGHTS),
    default_group_perm=st.sampled_from(RIGHTS),
    topic_perms=rights_of(NAMES),
    group_perms=rights_of(("team", "other")),
)
ADMIN_WITH_RIGHTS = AclAccount(
    KEY, admin=True, secret_key=SECRET, default_topic_perm="DENY", topic_perms=["else=SUB"]
)


@given(accounts, st.sampled_from(Deed), st.sampled_from(NAMES))
@example(ADMIN_WITH_RIGHTS, Deed.SEND, "orders")
def test_the_answer_is_the_decision_of_the_broker(
    account: AclAccount, deed: Deed, name: str
) -> None:
    subject = name if deed is not Deed.JOIN else name.removeprefix(retry_topic(""))
    found = verdict(AclConfig([], [account]), KEY, deed, subject)
    assert found.is_allowed is is_allowed(account, call_of(deed, subject)), found


USER = AclAccount(
    KEY, secret_key=None, default_topic_perm="SUB", default_group_perm=None,
    topic_perms=["orders=PUB"], group_perms=["team=SUB"], white_remote_address="10.0.0.*",
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "deed", "name", "is_allowed", "rule"),
    [
        (KEY, Deed.SEND, "orders", True, "topicPerms: orders=PUB"),
        (KEY, Deed.READ, "orders", False, "topicPerms: orders=PUB"),
        (KEY, Deed.READ, "else", True, "defaultTopicPerm: SUB"),
        (KEY, Deed.JOIN, "team", True, "groupPerms: team=SUB"),
        (KEY, Deed.JOIN, "else", False, "defaultGroupPerm: DENY"),
        (KEY, Deed.READ, HALF_TOPIC, False, f"default rights do not cover {HALF_TOPIC}"),
        (KEY, Deed.SEND, TRACE_TOPIC, True, "every account with any right may send traces"),
        ("nobody", Deed.SEND, "orders", False, "the broker does not know the account"),
        ("short", Deed.SEND, "orders", False,
         "the account cannot be used: accessKey and secretKey must be longer than 6"),
        ("adminKey1", Deed.SEND, "orders", True, "admin: true"),
    ],
)  # fmt: skip
def test_the_answer_names_the_rule(
    key: str, deed: Deed, name: str, is_allowed: bool, rule: str
) -> None:
    others = [AclAccount("short"), AclAccount("adminKey1", admin=True)]
    config = AclConfig(["127.0.0.1"], [USER, *others])
    assert verdict(config, key, deed, name) == (is_allowed, rule)
    assert exempt_addresses(config, KEY) == ["127.0.0.1", "10.0.0.*"]
