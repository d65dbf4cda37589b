# SPDX-License-Identifier: Apache-2.0
"""The command line: its table of commands, its help and its start-up time."""

import gc
import json
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cometmq.cli import entry, mqadmin
from cometmq.cli import main as cli
from cometmq.cli.access import ACCESS, Access
from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS
from cometmq.cli.mqadmin.frame import Reply
from cometmq.peers.comet import PROGRAM
from cometmq.runtime import programs

from .invoking import OWN, invoke

SERVICES = [it.module.removeprefix("cometmq.") for it in programs.COMMANDS.values()]
HEAVY = (
    "cometmq.broker",
    "cometmq.store",
    "cometmq.client",
    "cometmq.remoting.commands",
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
"""Modules that no JSON-printing client command may import."""
MODULES_MAX = 463
"""Measured: 450 modules. The test counts modules because times vary between machines."""


def test_help_lists_every_command_without_loading_it():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from cometmq.cli.main import app\n"
        "print(CliRunner().invoke(app, ['--help']).output)\n"
        "print(CliRunner().invoke(app, ['help', 'all']).output)\n"
        f"print('loaded:', [m for m in {HEAVY} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "loaded: []" in done.stdout
    assert "Programs:" in done.stdout
    for name, info in OWN.items():
        assert f"{name} " in done.stdout
        assert info.help in done.stdout


@pytest.mark.parametrize("name", [f"{it}.app" for it in SERVICES])
def test_a_program_starts_without_what_only_scrapes_need(name):
    code = (
        f"import sys, cometmq.{name}, cometmq.cli.programs.running\n"
        "names = ('cometmq.runtime.metrics', 'prometheus_client')\n"
        "print([it for it in names if it in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['cometmq.runtime.metrics']\n"


def test_the_help_of_the_suite_imports_none_of_its_programs():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from cometmq.cli.main import app\n"
        "assert '--console' in CliRunner().invoke(app, ['standalone', '-h']).output\n"
        "names = ('broker', 'namesrv', 'txn_checker')\n"
        "print([it for it in names if f'cometmq.{it}.app' in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_table_of_programs_is_that_of_commands():
    panel = [name for name, info in COMMANDS.items() if info.panel == cli.PROGRAMS]
    assert panel == ["standalone", *programs.COMMANDS]


@pytest.mark.parametrize("name", ["topic", "group", "message", "dlq", "txn", "ha", "k8s", "store"])
def test_the_help_of_a_group_describes_its_commands_in_whole_sentences(name):
    lines = invoke(name, "-h", env={"COLUMNS": "80"}).output.splitlines()
    described = " ".join(" ".join(lines[lines.index("Commands:") + 1 :]).split())
    assert described.endswith(".")
    assert "..." not in described
    assert len(lines) <= 24


def test_the_commands_of_mqadmin_are_listed_apart_and_can_be_called_there():
    words = invoke("mqadmin", "-h").output.split()
    assert mqadmin.COMMANDS.keys() <= {*words}
    assert invoke("mqadmin", "topicRoute", "-h").output.startswith("Usage: cometmq mqadmin topicR")
    assert invoke("TOPICROUTE", "-h").exit_code == 0


@pytest.mark.parametrize(
    "path",
    [("topic",), ("topic", "create"), ("broker",), ("standalone",), ("lag",), ("topicList",)],
)
def test_help_has_three_forms(path):
    page = invoke(*path, "--help")
    assert page.exit_code == 0
    assert page.output.startswith(f"Usage: cometmq {' '.join(path)} ")
    assert invoke(*path, "-h").output == page.output
    assert invoke("help", *path).output == page.output


def test_help_of_nothing_is_the_page_of_all_and_of_a_wrong_word_a_line():
    def say(*args):
        return subprocess.run([str(PROGRAM), *args], capture_output=True, text=True, check=False)

    assert say("help").stdout == say("--help").stdout
    assert say("version").stdout == say("--version").stdout
    found = json.loads(say("version", "--json").stdout)
    line = f"cometmq {found['version']}, wire {found['wire_version']}\n"
    assert say("version").stdout == say("--version").stdout == line
    assert found["wire_version"] == "V4_9_4"
    wrong = say("help", "brokr")
    assert wrong.returncode == 2
    assert "broker" in wrong.stderr


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--access-key", "a", "topic", "list"), Access("a", is_account_said=True)),
        (("topic", "list", "--access-key", "a"), Access("a", is_account_said=True)),
        (
            ("topic", "--tls", "list", "--secret-key=s"),
            Access("", "s", is_tls=True, is_account_said=True, is_tls_said=True),
        ),
        (
            ("--access-key", "a", "topicList", "--access-key", "b"),
            Access("b", is_account_said=True),
        ),
        (
            ("mqadmin", "topicList", "--tls-config", "x"),
            Access(tls_config=Path("x"), is_tls_said=True),
        ),
        (("-n", "h:1", "--json", "topic", "list"), Access(namesrv="h:1", as_json=True)),
    ],
)
def test_options_of_cometmq_stand_before_or_after_the_command(monkeypatch, args, expected):
    seen = []
    monkeypatch.setattr(
        "cometmq.cli.verbs.topics.ask", lambda namesrv, _: seen.append(namesrv) or ([], [])
    )
    monkeypatch.setattr(
        "cometmq.cli.mqadmin.frame.ask", lambda namesrv, _: seen.append(namesrv) or Reply("", [])
    )
    env = {"NAMESRV_ADDR": "env:1", "COMETMQ_ACCESS_KEY": None}
    result = invoke(*args, env=env)
    assert result.exit_code == 0, result.output
    assert ACCESS.get() == expected._replace(is_resolved=True)
    assert seen == [expected.namesrv or "env:1"]
    assert (result.output == "[]\n") == ("--json" in args)


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


def test_the_suite_imports_the_client_only_once_the_broker_has_started():
    code = (
        "import sys\n"
        "import cometmq.cli.programs.standalone as standalone\n"
        "print([m for m in sys.modules if m.startswith('cometmq.client')])\n"
        "print(standalone._import_checker().__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nTxnCheckerApp\n"


def test_the_commands_are_imported_without_garbage_collections(monkeypatch):
    seen = []

    def load(name):
        seen.append((name, gc.isenabled()))
        return SimpleNamespace(main=lambda: seen.append(("main", gc.isenabled())))

    monkeypatch.setattr(entry, "import_module", load)
    entry.main()
    assert seen == [("cometmq.cli.main", False), ("main", True)]


def test_each_command_has_a_module_with_its_app():
    for name, info in COMMANDS.items():
        command = load_command(name, info)
        assert (command.name, bool(command.help)) == (name, True)


def test_the_version_is_that_of_the_distribution():
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.startswith("cometmq ")


def test_a_deleted_current_folder_is_named(tmp_path):
    script = f'cd {tmp_path}; rmdir {tmp_path}; exec "$0" "$@"'
    done = subprocess.run(
        ["bash", "-c", script, str(PROGRAM), "standalone"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == "cometmq: the current folder was deleted: change to another one\n"


def test_a_user_without_a_name_has_the_home_that_docker_gives(monkeypatch):
    def unknown(_user_id):
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(RuntimeError, match="home directory"):
        Path.home()
    entry.set_home()
    assert Path.home() == Path("/")
