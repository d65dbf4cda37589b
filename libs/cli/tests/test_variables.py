# SPDX-License-Identifier: Apache-2.0
"""Misspelt COMETMQ_* variables are reported; correctly spelt ones never are."""

from typing import Any

import pytest
import typer.main

from cometmq.cli.access import NAMESRV_VARIABLE
from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS, app
from cometmq.runtime import programs
from cometmq.runtime.settings import load
from cometmq.runtime.settings.fields import fields_of
from cometmq.runtime.variables import COMMAND_VARIABLES, unread

PROGRAMS: dict[str, Any] = {it.prefix: it.settings_type() for it in programs.COMMANDS.values()}
OWN = {
    prefix: {it for field in fields_of(kind).values() for it in field.variables(prefix)}
    for prefix, kind in PROGRAMS.items()
}


def test_every_variable_of_commands_is_known():
    names = set()
    commands = [typer.main.get_command(app)]
    commands += [
        load_command(name, COMMANDS[name])
        for name in ("standalone", "broker", "produce", "topic", "ha", "topicList")
    ]
    for command in commands:
        both = [command, *getattr(command, "commands", {}).values()]
        names |= {param.envvar for it in both for param in it.params if param.envvar}
    assert names - {NAMESRV_VARIABLE} == COMMAND_VARIABLES - {"COMETMQ_DECOMMISSION_SECONDS"}


def test_no_program_reports_a_variable_of_another():
    all_variables = dict.fromkeys(COMMAND_VARIABLES.union(*OWN.values()), "1")
    for prefix, own in OWN.items():
        assert unread(all_variables, prefix, own) == {}
    assert unread(all_variables, "", [NAMESRV_VARIABLE]) == {}


@pytest.mark.parametrize(
    ("prefix", "name", "right"),
    [
        ("COMETMQ_BROKER", "COMETMQ_BROKER_NAME", "COMETMQ_BROKER_BROKER_NAME"),
        ("COMETMQ_BROKER", "COMETMQ_NAMESRV_ADDR", "COMETMQ_BROKER_NAMESRV_ADDR"),
        ("COMETMQ_NAMESRV", "COMETMQ_NAMESRV_LISTENPORT", "COMETMQ_NAMESRV_LISTEN_PORT"),
        ("COMETMQ_TXN_CHECKER", "COMETMQ_CHECKER_SECRET_KEY", "COMETMQ_TXN_CHECKER_SECRET_KEY"),
    ],
)
def test_a_nearly_right_variable_is_answered_with_the_right_one(prefix, name, right):
    assert load(PROGRAMS[prefix], prefix=prefix, env={name: "1"}).mistakes.unread == {name: right}


def test_commands_name_the_variables_that_they_do_not_read(ask, call, monkeypatch):
    monkeypatch.setenv("COMETMQ_ACCES_KEY", "me")
    monkeypatch.setenv("COMETMQ_NAMESRV_ADDR", "127.0.0.1:1")
    monkeypatch.setenv("COMETMQ_BROKER_LISTEN_PORT", "10911")
    monkeypatch.setenv("COMETMQ_BROKER_SERVICE_HOST", "10.0.0.1")
    start = "cometmq: no program reads the variable "
    listed = ask("topic", "list", "--all")
    assert listed.status == 0
    assert listed.err.splitlines() == [
        f"{start}COMETMQ_ACCES_KEY; did you mean COMETMQ_ACCESS_KEY?",
        f"{start}COMETMQ_NAMESRV_ADDR; did you mean NAMESRV_ADDR?",
    ]
    key = "cometmq: COMETMQ_ACCES_KEY=me: no program reads the variable COMETMQ_ACCES_KEY"
    assert call("broker", "-p").err.splitlines() == [
        f"{key}; did you mean COMETMQ_BROKER_ACCESS_KEY?",
        f"{start}COMETMQ_NAMESRV_ADDR; did you mean COMETMQ_BROKER_NAMESRV_ADDR?",
    ]


def test_a_mistyped_tls_key_keeps_every_program_from_starting():
    for prefix, kind in PROGRAMS.items():
        keys = [field for name, field in fields_of(kind).items() if name.startswith("tls.")]
        assert keys, prefix
        assert all(field.is_guard for field in keys), prefix
