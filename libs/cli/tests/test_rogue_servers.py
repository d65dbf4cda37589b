# SPDX-License-Identifier: Apache-2.0
"""Every verb that only reads ends soon with a table or an error, whatever servers answer."""

import re
import subprocess
from random import Random
from time import monotonic

import pytest

from cometmq.client import sync
from cometmq.peers.comet import PROGRAM

from .rogue import rogue

SEEDS = range(8)
OUTPUT_CHARS_MAX = 5_000_000
ENDS_S = 60
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
VERBS = [
    "cluster", "cluster --json", "topic list", "topic list --json", "topic describe RT",
    "topic route RT", "group list", "group describe online", "group describe online --json", "lag",
    "lag rg", "lag rg --json", "message show -t RT {id}", "message show -t RT {id} --json",
    "message find RT -k k", "consumerConnection -g online", "producer -b {broker}",
    "getBrokerConfig -b {broker}", "clusterList", "topicStatus -t RT", "consumerProgress -g rg",
    "top", "top groups --json", "top connections", "top refused", "check broker",
    "check group rg", "check topic RT", "check copies", "check disk", "doctor", "dlq list rg",
    "txn list", "definitions export",
]  # fmt: skip


@pytest.fixture(scope="module")
def stored(suite):
    """Fill the suite; return what the verbs name."""

    def run(*args):
        command = [str(PROGRAM), *args, "-n", suite.namesrv]
        return subprocess.run(command, check=True, capture_output=True).stdout

    run("topic", "create", "RT", "--queues", "2")
    run("group", "create", "rg")
    sent = run("produce", "RT", "--key", "k", *map(str, range(8)), "--json")
    run("consume", "RT", "-g", "rg", "--from", "first", "--max", "2", "--timeout", "30")
    with (
        sync.Producer("senders", suite.namesrv),
        sync.LitePullConsumer("online", suite.namesrv) as consumer,
    ):
        consumer.subscribe("RT")
        consumer.poll()
        yield re.findall(r"[0-9A-F]{32}", sent.decode())[0]


@pytest.fixture(scope="module")
def liar(suite):
    with rogue() as found:
        yield found, found.stand_for(suite.namesrv), found.stand_for(suite.broker)


@pytest.mark.fuzz
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_believes_everything(call, stored, liar, verb, monkeypatch):
    monkeypatch.setattr("cometmq.cli.operation.top.FIRST_RATES_S", 0.01)
    proxy, namesrv, broker = liar
    words = verb.format(id=stored, broker=broker).split()
    proxy.share = 0.0
    honest = call(*words, "-n", namesrv)
    assert honest.status != 2, honest.err
    for seed in SEEDS:
        proxy.random, proxy.share = Random(f"{verb} {seed}"), (0.1, 0.4, 1.0)[seed % 3]
        begin = monotonic()
        result = call(*words, "-n", namesrv)
        took = monotonic() - begin
        text = result.out + result.err
        assert "Traceback" not in text, seed
        assert not UNSAFE.search(text), (seed, UNSAFE.findall(text))
        assert len(text) < OUTPUT_CHARS_MAX, seed
        assert text or result.status == 0, seed
        assert took < ENDS_S, (seed, text[-1000:])
