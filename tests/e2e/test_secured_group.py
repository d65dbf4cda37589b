# SPDX-License-Identifier: Apache-2.0
"""A group that only TLS clients with an account can use: declared, used, failed over, drained."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.peers.e2e.broker_groups import conditions, is_ready
from cometmq.peers.e2e.kubectl import until
from cometmq.peers.e2e.pods import Files, waiting_pod
from cometmq.peers.errors import PeerError
from cometmq.peers.paths import ROOT
from cometmq.remoting.transport.certificate import self_signed_pem

RELEASE = "safe"
NAMESRV = f"{RELEASE}-cometmq-namesrv-pods"
GROUP = "secured"
CONTROL_NAME = "brokers.e2e.test"
TOPIC = "secured-orders"
CONSUMERS = "secured-billing"
POD = "secured-client"
FOLDER = "/secured"
COUNT = 20
TIMEOUT_S = 300
ACCOUNT = {"accessKey": "e2e-admin", "secretKey": "e2e-admin-secret"}
ACCOUNTS = "accounts:\n- {accessKey: e2e-admin, secretKey: e2e-admin-secret, admin: true}\n"
CLIENT = f"tls.client.authServer=true\ntls.client.trustCertPath={FOLDER}/ca.crt\n"


def secret(name: str, **values: str) -> dict[str, Any]:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


@pytest.fixture(scope="module")
def certificate() -> dict[str, str]:
    """Return the keys of a Secret with a certificate that is its own authority."""
    mark = "-----BEGIN CERTIFICATE-----"
    key, _, rest = self_signed_pem(CONTROL_NAME).partition(mark)
    return {"tls.crt": mark + rest, "tls.key": key, "ca.crt": mark + rest}


@pytest.fixture(scope="module")
def secured(world, certificate) -> Iterator[Any]:
    """Name servers with TLS, and a pod whose commands use TLS and an account."""
    mq, image = world.mq, world.image
    mq.apply(secret("secured-tls", **certificate))
    repository, _, tag = image.rpartition(":")
    mq.helm(
        "install", RELEASE, str(ROOT / "deploy/helm/cometmq"),
        f"--values={ROOT / 'deploy/helm/cometmq/ci/operator-values.yaml'}",
        f"--set=image.repository={repository}", f"--set-string=image.tag={tag}",
        "--set=txnChecker.enabled=false", "--set=tls.enabled=true", "--set=tls.mode=enforcing",
        "--set=tls.existingSecret=secured-tls",
    )  # fmt: skip
    texts = {Path("ca.crt"): certificate["ca.crt"], Path("tls.properties"): CLIENT}
    env = {
        "COMETMQ_TLS_CONFIG": f"{FOLDER}/tls.properties",
        "COMETMQ_ACCESS_KEY": ACCOUNT["accessKey"],
        "COMETMQ_SECRET_KEY": ACCOUNT["secretKey"],
    }
    mq.apply(*waiting_pod(POD, image, files=Files(FOLDER, texts), env=env))
    mq.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=120s")
    mq.kubectl("rollout", "status", f"sts/{RELEASE}-cometmq-namesrv", "--timeout=5m")
    yield world
    mq.kubectl("delete", "pod", POD, "--now")
    mq.helm("uninstall", RELEASE, "--wait")


def namesrv(world) -> str:
    return f"{NAMESRV}.{world.mq.name}.svc:9876"


def comet(world, *words: str, drop: tuple[str, ...] = ()) -> str:
    """Run `cometmq` in the pod, without some of its variables."""
    without = [word for name in drop for word in ("-u", name)]
    command = ("exec", POD, "--", "env", *without, "cometmq", *words, "-n", namesrv(world))
    return str(world.mq.kubectl(*command))


def produce(world, text: str) -> None:
    """Send COUNT messages once a send is accepted; a refused attempt stores none."""

    def sent() -> bool:
        try:
            comet(world, "produce", TOPIC, text, "--count", "1")
        except PeerError:
            return False
        return True

    until(sent, TIMEOUT_S, "a send is accepted")
    comet(world, "produce", TOPIC, text, "--count", str(COUNT - 1))


def group(world) -> dict[str, Any]:
    return dict(world.mq.get("bg", GROUP))


def until_ready(world) -> dict[str, Any]:
    until(lambda: is_ready(group(world)), TIMEOUT_S, f"{GROUP} is ready")
    return dict(group(world)["status"])


def test_a_missing_secret_is_named_until_it_exists(secured):
    secured.apply_group(
        GROUP, replicas=2, nameServers=[namesrv(secured)],
        tls={"secretName": "secured-tls", "mode": "Enforcing", "controlName": CONTROL_NAME},
        accounts={"secretName": "secured-accounts", "operatorSecretName": "secured-operator"},
        networkPolicy={"clients": [{"podSelector": {}}]},
    )  # fmt: skip

    def is_named() -> bool:
        found = conditions(group(secured)).get("Ready", {})
        return found.get("reason") == "SecretMissing" and "accounts" in found["message"]

    until(is_named, TIMEOUT_S, "the condition names the Secret")
    accounts = secret("secured-accounts", **{"plain_acl.yml": ACCOUNTS})
    secured.mq.apply(accounts, secret("secured-operator", **ACCOUNT))
    until_ready(secured)


def test_a_topic_is_declared_with_tls_and_an_account(secured):
    spec = {
        "nameServers": [namesrv(secured)], "writeQueueNums": 4,
        "tls": {"secretName": "secured-tls"}, "accountSecretName": "secured-operator",
    }  # fmt: skip
    secured.mq.apply(
        {
            "apiVersion": "cometmq.io/v1alpha1", "kind": "Topic", "metadata": {"name": TOPIC},
            "spec": spec,
        }
    )  # fmt: skip
    secured.mq.kubectl("wait", "--for=condition=Ready", f"mqt/{TOPIC}", "--timeout=120s")


def test_clients_with_tls_and_an_account_survive_a_failover(secured, report):
    produce(secured, "before")
    status = until_ready(secured)
    secured.kill(status["master"])
    until(lambda: group(secured)["status"]["epoch"] > status["epoch"], TIMEOUT_S, "the next master")
    produce(secured, "after")
    until_ready(secured)
    output = comet(
        secured, "consume", TOPIC, "--group", CONSUMERS, "--max", str(2 * COUNT),
        "--timeout", "120",
    )  # fmt: skip
    scenario = "failover of a group with TLS and accounts"
    bodies = output.split()
    lost = 2 * COUNT - len(bodies)
    report.add(scenario, "lost messages", lost, limit=0)
    assert sorted(bodies) == ["after"] * COUNT + ["before"] * COUNT


@pytest.mark.parametrize(
    "dropped",
    [("COMETMQ_TLS_CONFIG",), ("COMETMQ_ACCESS_KEY", "COMETMQ_SECRET_KEY")],
    ids=["plain", "without an account"],
)
def test_other_clients_are_refused(secured, dropped):
    with pytest.raises(PeerError):
        comet(secured, "produce", TOPIC, "refused", drop=dropped)


def test_a_deletion_counts_the_backlog_with_tls_and_the_account(secured):
    secured.mq.kubectl("delete", "mqt", TOPIC)
    secured.mq.kubectl("delete", "bg", GROUP, "--wait=false")
    until(lambda: secured.mq.get("bg", GROUP) is None, TIMEOUT_S, "the drained group is gone")
