# SPDX-License-Identifier: Apache-2.0
"""Every command of mqadmin exists in `cometmq` under its name, with its options.

The options of mqadmin are read from its own help pages.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cometmq.cli.lazy import load_command
from cometmq.cli.mqadmin import COMMANDS
from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.java import mqadmin

pytestmark = pytest.mark.compat

UNREGISTERED = {"consumer", "DecodeMessageId", "getConsumerStatus", "resetOffsetByTimeOld"}
"""Commands that mqadmin 4.9.4 implements but does not register."""
PROOFS = Path(__file__).with_name("proofs.toml")
_COMMAND = re.compile(r"^   (\w+)\s", re.MULTILINE)
_OPTION = re.compile(r"^ -(\w),--(\S+(?: \S+)*?)\s*( <arg>)?(?:\s{2,}|$)", re.MULTILINE)


class Option(NamedTuple):
    short: str
    long: str
    takes_value: bool
    is_required: bool


@pytest.fixture(scope="module")
def helping() -> Iterator[MqAdmin]:
    """RocketMQ's tool; its help needs no server."""
    with MqAdmin("127.0.0.1:1") as tool:
        yield tool


def test_every_command_exists() -> None:
    """Commands of `cometmq` that mqadmin does not register have their own tests."""
    theirs = set(_COMMAND.findall(mqadmin([], "127.0.0.1:1").stdout))
    assert "updateTopic" in theirs
    assert set(COMMANDS) - theirs == UNREGISTERED
    assert theirs <= set(COMMANDS)
    assert theirs == set(tomllib.loads(PROOFS.read_text(encoding="utf-8"))["commands"])


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - UNREGISTERED))
def test_every_option_exists(helping: MqAdmin, name: str) -> None:
    """Covers short and long names, options with and without a value, required and optional ones."""
    answer = helping.run("help", name)
    page = answer.output
    theirs = set(_their_options(page))
    assert theirs, answer
    mine = load_command(name, COMMANDS[name])
    known = {spelling for param in mine.params for spelling in param.opts} | {"-h", "--help"}

    for option in theirs:
        assert {f"-{option.short}", f"--{option.long}"} <= known, option
    for param in mine.params:
        twins = [option for option in theirs if f"-{option.short}" in param.opts]
        if twins and twins[0].short != "n":
            needs = (twins[0].is_required, twins[0].takes_value)
            assert (param.required, not param.is_flag) == needs
        else:
            own = [spelling for spelling in param.opts if not spelling.startswith("--")]
            assert own in ([], ["-n"]), f"what mqadmin lacks has long names only: {page}"


def _their_options(page: str) -> Iterator[Option]:
    usage = " ".join(page.partition("\n -")[0].split())
    for short, long, value in _OPTION.findall(page):
        # One of `-b <arg> | -c <arg>` is required: our commands check that themselves.
        is_optional = f"[-{short}" in usage or f"-{short} <arg> |" in usage
        is_choice = re.search(rf"\| -{short} <arg> ", usage) is not None
        yield Option(short, long.strip(), bool(value), not (is_optional or is_choice))
