# SPDX-License-Identifier: Apache-2.0
"""The command line: its catalogue, its speed, its refusals."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cometmq.cli import main as cli
from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS, app
from cometmq.remoting.errors import RequestTimeout

HEAVY = (
    "cometmq.broker",
    "cometmq.store",
    "cometmq.client",
    "asyncio",
    "structlog",
    "uvloop",
    "rich",
)
PROGRAMS_ONLY = (
    "cometmq.store",
    "structlog",
    "uvloop",
    "prometheus_client",
    "rich",
    "pydantic",
    "yaml",
)
"""What no command needs that asks a server and prints JSON."""
MODULES_MAX = 450
"""Measured: 410, in 0.15 s; modules are counted because times differ from machine to machine."""


def invoke(*args, env=None):
    return CliRunner().invoke(app, args, env={"COMETMQ_LOG_LEVEL": None, **(env or {})})


def test_help_lists_every_command_without_loading_it():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from cometmq.cli.main import app\n"
        "print(CliRunner().invoke(app, ['--help']).output)\n"
        f"print('loaded:', [m for m in {HEAVY} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "loaded: []" in done.stdout
    assert "Programs:" in done.stdout
    words = " ".join(done.stdout.split())
    for name, info in COMMANDS.items():
        assert name in words
        assert info.help in words


@pytest.mark.parametrize("name", ["topicList", "sendMessage", "consumerProgress", "topic"])
def test_a_command_starts_fast_because_it_imports_little(name):
    code = (
        "import sys\n"
        "from cometmq.cli.lazy import load_command\n"
        "from cometmq.cli.main import COMMANDS\n"
        f"load_command({name!r}, COMMANDS[{name!r}])\n"
        f"print([m for m in {PROGRAMS_ONLY} if m in sys.modules], len(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, _, count = done.stdout.rpartition(" ")
    assert loaded == "[]"
    assert int(count) <= MODULES_MAX


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_module_with_its_app(name):
    command = load_command(name, COMMANDS[name])
    assert (command.name, bool(command.help)) == (name, True)


def test_the_version_is_that_of_the_distribution():
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.startswith("cometmq ")


def test_a_mistyped_command_is_answered_with_the_right_one():
    result = invoke("brokr")
    assert result.exit_code == 2
    assert "broker" in result.output


def test_an_error_that_a_person_can_mend_is_one_line(monkeypatch, capsys):
    def fails():
        raise RequestTimeout("127.0.0.1:9876 did not answer within 3 s")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "cometmq: 127.0.0.1:9876 did not answer within 3 s\n"


@pytest.mark.parametrize("program", ["namesrv", "broker"])
def test_settings_are_printed_with_their_sources(program, tmp_path):
    file = tmp_path / "x.conf"
    file.write_text("serverChannelMaxIdleTimeSeconds=7\nfromAnotherVersion=1\n")
    env = {f"COMETMQ_{program.upper()}_LISTEN_PORT": "4000"}
    result = invoke(program, "-c", str(file), "--admin-http-port", "5", "-p", env=env)
    assert result.exit_code == 0
    lines = {
        line.split("#")[0].strip(): line.partition("# ")[2] for line in result.output.split("\n")
    }
    assert lines["serverChannelMaxIdleTimeSeconds=7"] == f"file {file}:1"
    assert lines["listenPort=4000"] == f"environment COMETMQ_{program.upper()}_LISTEN_PORT"
    assert lines["adminHttpPort=5"] == "command line --admin-http-port"
    assert lines["tls.server.mode=permissive"] == "default"
    assert lines["fromAnotherVersion=1"] == "not known here, kept"


def test_the_name_servers_of_a_broker_have_an_option_of_their_own():
    result = invoke("broker", "-n", "a:1;b:2", "-p")
    assert "namesrvAddr=a:1;b:2" in result.output


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (
            ["namesrv", "--listen-port", "x"],
            "listenPort=x: must be an integer 0..65535 (from command line --listen-port)",
        ),
        (["broker", "--nonsense", "1"], "--nonsense: there is no such option"),
        (["broker", "-c", "/nowhere/x.conf"], "cannot read /nowhere/x.conf"),
        (["namesrv", "--log-level", "loud"], "--log-level=loud: must be one of debug, info,"),
    ],
)
def test_bad_settings_are_one_line_and_status_2(args, line):
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.output.startswith(f"cometmq: {line}")
    assert result.output.count("\n") == 1
