# SPDX-License-Identifier: Apache-2.0
"""A suite with enforced TLS and access control works, including its txn-checker."""

import asyncio
import json
import subprocess
import urllib.error
import urllib.request
from typing import Any

import pytest

from cometmq.cli.programs.children import Options
from cometmq.cli.programs.standalone import banner
from cometmq.cli.programs.suite import load_suite
from cometmq.client import (
    Message,
    SessionCredentials,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport import TlsSettings
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.runtime.admin_http import AdminHttp

START_TIMEOUT_S = 180
ACCOUNTS = """
accounts:
- accessKey: shop-web
  secretKey: change-me-now
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
CREDENTIALS = SessionCredentials("shop-web", "change-me-now")
QUICK = {
    "COMETMQ_TXN_CHECKER_TRANSACTION_TIME_OUT": "0",
    "COMETMQ_TXN_CHECKER_TRANSACTION_CHECK_INTERVAL": "100",
    "COMETMQ_TXN_CHECKER_POLL_NAME_SERVER_INTERVAL": "100",
}


class SecureSuite:
    """`cometmq standalone` in a folder with a broker.conf."""

    def __init__(self, folder):
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        (self.data / "broker.conf").write_text("tls.server.mode=enforcing\naclEnable=true\n")
        (self.data / "plain_acl.yml").write_text(ACCOUNTS)
        (folder / "tools.yml").write_text("accessKey: shop-web\nsecretKey: change-me-now\n")
        self.http_port = free_port()
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.children = []

    def start(self):
        self.program(
            "standalone",
            *("--data", self.data, "--namesrv-port", self.namesrv.split(":")[1]),
            *("--broker-port", free_broker_port(), "--http-port", self.http_port),
            ready="cluster",
        )

    def program(self, name, *args, ready, **env):
        child = Child(
            name,
            [str(PROGRAM), name, *map(str, args)],
            log_path=self.folder / f"{name}.log",
            env={**QUICK, **env},
            cwd=self.folder,
        )
        self.children.append(child)
        child.wait_for_log(ready, START_TIMEOUT_S)
        return child

    def run(self, *args):
        return subprocess.run(
            [str(PROGRAM), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            cwd=self.folder,
        )


@pytest.fixture
def suite(tmp_path):
    suite = SecureSuite(tmp_path)
    yield suite
    for child in suite.children:
        if child.exit_status is None:
            child.kill()


def readiness(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)
    except urllib.error.URLError:  # the port opens after the event
        return {"status": "", "checks": {"txn-checker": ""}}


async def test_an_open_transaction_is_resolved_with_tls_and_accounts(suite):
    suite.start()
    options = TransactionOptions(credentials=CREDENTIALS, tls=TlsSettings(enable=True))
    producer = TransactionProducer(
        "shop",
        suite.namesrv,
        check=lambda message: TransactionState.COMMIT,
        execute=lambda message, argument: TransactionState.UNKNOWN,
        options=options,
    )
    secure = ["--tls", "--credentials", "tools.yml"]
    query: list[Any] = [
        "-n",
        suite.namesrv,
        "Orders",
        "--from",
        "first",
        "--max",
        1,
        "--timeout",
        30,
    ]
    async with producer:
        result = await producer.send_in_transaction(Message("Orders", b"one book"), None)
        assert result.state is TransactionState.UNKNOWN
        consumed = await asyncio.to_thread(suite.run, *secure, "consume", *query)  # type: ignore[call-arg]

    assert (consumed.returncode, "one book" in consumed.stdout) == (0, True), consumed.stderr
    assert readiness(suite.http_port)["status"] == "ok"


def test_the_banner_shows_commands_that_work(suite):
    suite.start()
    banner = suite.children[0].log()
    assert f"--tls --credentials FILE produce -n {suite.namesrv} hello" in banner
    assert str(suite.data / "plain_acl.yml") in banner


def test_a_plain_client_is_told_that_tls_is_required(suite):
    suite.start()
    refused = suite.run("cluster", "-n", suite.namesrv)
    assert refused.returncode != 0
    assert "TLS is required on this port" in refused.stderr


def test_a_view_of_brokers_that_refuse_to_tell_is_not_empty(suite):
    """Nothing was shown, with exit status 0, although a refusal was looked for."""
    suite.start()
    done = suite.run("--tls", "top", "refused", "-n", suite.namesrv)
    assert (done.returncode, "lately" in done.stderr) == (1, False)
    assert "refuses to tell its state: access denied: No accessKey is configured" in done.stderr
    assert "use --credentials FILE" in done.stderr


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "TLS is required on this port"),
        ({"tls.enable": "true"}, "set accessKey and secretKey"),
        (
            {"tls.enable": "true", "accessKey": "shop-web", "secretKey": "change-me-now"},
            "set accessKey and secretKey to the account of an administrator",
        ),
    ],
)
def test_a_checker_that_cannot_work_is_not_ready_and_says_why(suite, settings, reason):
    suite.start()
    port = free_port()
    lines = {"adminHttpPort": port, "storePathRootDir": suite.folder / "txn", **settings}
    (suite.folder / "txn.conf").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
    child = suite.program(
        "txn-checker", "-c", "txn.conf", "-n", suite.namesrv, ready="txn_checker.ready"
    )

    child.wait_until(
        lambda: reason in readiness(port)["checks"]["txn-checker"], START_TIMEOUT_S, "a reason"
    )
    assert readiness(port)["status"] == "failing"


def test_a_checker_with_settings_of_its_own_becomes_ready(suite):
    accounts = ACCOUNTS + "- accessKey: txn-checker\n  secretKey: also-secret\n  admin: true\n"
    (suite.data / "plain_acl.yml").write_text(accounts)
    suite.start()
    port = free_port()
    suite.program(
        "txn-checker",
        *("-n", suite.namesrv, "--admin-http-port", port, "--store-path-root-dir", "txn"),
        *("--tls-enable", "--access-key", "txn-checker", "--secret-key", "also-secret"),
        ready="broker.followed",
    ).wait_until(lambda: readiness(port)["status"] == "ok", START_TIMEOUT_S, "readiness")


def test_client_certificates_need_one_for_the_suite_itself(suite):
    (suite.data / "broker.conf").write_text(
        "tls.server.mode=enforcing\ntls.server.need.client.auth=require\n"
    )
    refused = suite.run("standalone", "--data", suite.data)
    assert refused.returncode == 2
    assert "set tls.client.certPath" in refused.stderr


def test_the_banner_names_the_option_for_client_certificates(tmp_path):
    pem = tmp_path / "both.pem"
    pem.write_text(self_signed_pem("both"))
    keys = ("server.certPath", "server.keyPath", "server.trustCertPath")
    paths = [f"tls.{key}={pem}" for key in (*keys, "client.certPath", "client.keyPath")]
    modes = ["tls.server.mode=enforcing", "tls.server.need.client.auth=require"]
    settings = "\n".join([*modes, "tls.test.mode.enable=false", *paths])
    (tmp_path / "broker.conf").write_text(settings)
    suite = load_suite(None, Options(data=tmp_path, http_port=-1))
    addresses = ["127.0.0.1:10911", "127.0.0.1:10912"]
    text = banner(suite, "127.0.0.1", 9876, addresses, AdminHttp(log=NO_LOG), path="native")
    assert "\n  message path native\n" in text
    assert " --tls --tls-config FILE produce " in text
