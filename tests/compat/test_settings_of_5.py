# SPDX-License-Identifier: Apache-2.0
"""Every key of RocketMQ 5.5's broker and name server is a setting, without effect, or refused."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.peers.java import Java5Cluster
from cometmq.peers.java.maven import ROCKETMQ_5_VERSION, program, server_class_path
from cometmq.peers.wire import call
from cometmq.runtime import properties
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings.fields import fields_of
from cometmq.runtime.settings.foreign import foreign_of

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

GET_BROKER_CONFIG, GET_NAMESRV_CONFIG = 26, 319
NOT_OF_FILES = {"configName", "clusterName"}  # the broker fills these in itself
FIELD = "private "


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java5Cluster]:
    with Java5Cluster(tmp_path_factory.mktemp("five")) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("name", "code"), [("broker", GET_BROKER_CONFIG), ("namesrv", GET_NAMESRV_CONFIG)]
)
def test_every_key_of_a_server_has_a_decision(five: Java5Cluster, name: str, code: int) -> None:
    address = five.broker_addrs[0] if name == "broker" else five.namesrv_addr
    defaults = properties.parse(call(address, code).body.decode())
    settings = PROGRAMS[name].settings_type()
    foreign = foreign_of(settings)
    assert [key for key in defaults if key not in fields_of(settings) and key not in foreign] == []
    for key, value in defaults.items():
        foreign.check(key, value)  # what a server does without being asked is not refused


@pytest.mark.parametrize(
    ("name", "jar", "config"),
    [
        ("broker", "rocketmq-auth", "org.apache.rocketmq.auth.config.AuthConfig"),
        ("namesrv", "rocketmq-common", "org.apache.rocketmq.common.ControllerConfig"),
        ("namesrv", "rocketmq-common", "org.apache.rocketmq.common.JraftConfig"),
    ],
)
def test_every_key_that_no_answer_has_has_a_decision(name: str, jar: str, config: str) -> None:
    folder = Path(server_class_path(ROCKETMQ_5_VERSION).split(":", 1)[0]).parent
    path = folder / f"{jar}-{ROCKETMQ_5_VERSION}.jar"
    shown = subprocess.run(
        [program("javap"), "-p", "-cp", str(path), config],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    lines = [line.strip() for line in shown.splitlines()]
    fields = [line for line in lines if line.startswith(FIELD) and "(" not in line]
    own = [line.rstrip(";").split() for line in fields if "static" not in line]
    keys = {words[-1] for words in own if "rocketmq" not in words[-2]}
    settings = PROGRAMS[name].settings_type()
    foreign = foreign_of(settings)
    assert keys
    assert {
        key for key in keys - NOT_OF_FILES if key not in fields_of(settings) and key not in foreign
    } == set()
