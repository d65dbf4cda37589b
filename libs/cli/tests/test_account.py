# SPDX-License-Identifier: Apache-2.0
"""`cometmq account` on a suite with access control, and on one without."""

import json

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.forks import forked_programs
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child

ACCOUNTS = """\
globalWhiteRemoteAddresses:
- 10.9.8.*
accounts:
- accessKey: chief-key
  secretKey: chief-secret
  admin: true
- accessKey: shop-web
  secretKey: shop-secret
  defaultTopicPerm: SUB
  topicPerms:
  - orders=PUB|SUB
"""
CHIEF = ("--access-key", "chief-key", "--secret-key", "chief-secret")


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure")
    (folder / "broker.conf").write_text("aclEnable=true\n")
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    port = free_port()
    options = [
        *("--data", folder, "--namesrv-port", port, "--broker-port", free_broker_port()),
        *("--http-port", free_port()),
    ]
    command = [str(PROGRAM), "standalone", *map(str, options)]
    with forked_programs():
        child = Child("secure", command, log_path=folder / "log", cwd=folder)
        child.wait_for_log("is running", 180)
        yield f"127.0.0.1:{port}"
        child.stop(60)


@pytest.fixture
def account(call, namesrv):
    return lambda *args: call("account", *args, "-n", namesrv, *CHIEF)


def test_accounts_are_listed_without_their_secrets(account):
    found = {it["account"]: it for it in account("list", "--json").json}
    assert found["chief-key"]["admin"] is True
    assert found["shop-web"]["topics"] == ["orders=PUB|SUB"]
    shown = account("list")
    assert "shop-web" in shown.out
    assert "secret" not in shown.out + json.dumps(found)


@pytest.mark.parametrize(
    ("who", "deed", "name", "is_allowed", "rule"),
    [
        ("shop-web", "send", "orders", True, "topicPerms: orders=PUB|SUB"),
        ("shop-web", "send", "else", False, "defaultTopicPerm: SUB"),
        ("shop-web", "join", "team", False, "defaultGroupPerm: DENY"),
        ("chief-key", "send", "else", True, "admin: true"),
        ("nobody", "read", "orders", False, "the broker does not know the account"),
    ],
)
def test_the_answer_names_the_rule(account, who, deed, name, is_allowed, rule):
    shown = account("may", who, deed, name)
    assert shown.status == int(not is_allowed)
    assert rule in shown.out
    assert "requests from 10.9.8.* need no right" in shown.err
    told = account("may", who, deed, name, "--json")
    assert told.status == shown.status
    found = json.loads(told.out)
    assert found["is_allowed"] is is_allowed
    assert [it["reason"] for it in found["answers"]] == [rule]
    assert found["exempt"] == ["10.9.8.*"]


def test_another_word_is_wrong_usage(account):
    assert account("may", "shop-web", "fly", "orders").status == 2


def test_without_access_control_everything_is_allowed(ask):
    told = ask("account", "may", "anybody", "send", "orders")
    assert told.status == 0
    assert "access control is off" in told.out
    listed = ask("account", "list")
    assert listed.status == 1
    assert "does not tell its accounts: access control is off" in listed.err


def test_an_account_that_is_no_administrator_learns_nothing(call, namesrv):
    own = ("--access-key", "shop-web", "--secret-key", "shop-secret")
    told = call("account", "may", "shop-web", "send", "orders", "-n", namesrv, *own)
    assert told.status == 1
    assert "unknown" in told.out
    assert "admin" in told.out
