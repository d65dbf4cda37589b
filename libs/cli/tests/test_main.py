# SPDX-License-Identifier: Apache-2.0
"""The command line: its table of commands, start-up time and refusals."""

import gc
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cometmq.cli import entry, mqadmin
from cometmq.cli import main as cli
from cometmq.cli.access import ACCESS, Access
from cometmq.cli.hints.suggestions import SUGGESTIONS
from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS, app
from cometmq.cli.programs.broker import IMPORTANT
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_port
from cometmq.remoting.errors import RequestTimeout
from cometmq.runtime import programs

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
MODULES_MAX = 462
"""Measured: 450 modules. The test counts modules because times vary between machines."""


OWN = {name: info for name, info in COMMANDS.items() if name not in mqadmin.COMMANDS}


def invoke(*args, env=None):
    return CliRunner().invoke(
        app, args, env={"COMETMQ_LOG_LEVEL": None, **(env or {})}, prog_name="cometmq"
    )


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
    for name, info in OWN.items():
        assert f"{name} " in done.stdout or f"{name}, " in done.stdout
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


def test_on_80_by_40_the_help_page_ends_with_our_commands():
    lines = invoke("--help", env={"COLUMNS": "80"}).output.splitlines()
    screen = lines[-39:]  # the prompt takes one line
    assert max(map(len, lines)) <= 80
    begin = screen.index("Programs:")
    rows = [it.strip().partition("  ")[0] for it in screen[begin:] if it.startswith("  ")]
    assert [name for row in rows for name in row.split(", ")] == list(OWN)


@pytest.mark.parametrize("name", ["topic", "group", "message", "dlq", "txn", "ha", "k8s", "store"])
def test_the_help_of_a_group_describes_its_commands_in_whole_sentences(name):
    lines = invoke(name, "-h", env={"COLUMNS": "80"}).output.splitlines()
    described = " ".join(" ".join(lines[lines.index("Commands:") + 1 :]).split())
    assert described.endswith(".")
    assert "..." not in described
    assert len(lines) <= 24


def test_the_commands_of_mqadmin_are_listed_apart_and_can_be_called_there():
    page = invoke("mqadmin", "-h").output
    words = " ".join(page.split())
    for name, info in mqadmin.COMMANDS.items():
        assert f" {name} " in words
        assert info.help in words
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
    assert "-h, --help" in page.output
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
        "cometmq.cli.mqadmin.topic_views.ask", lambda namesrv, _: seen.append(namesrv) or []
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
    gc.unfreeze()
    assert seen == [("cometmq.cli.main", False), ("main", True)]


def test_each_command_has_a_module_with_its_app():
    for name, info in COMMANDS.items():
        command = load_command(name, info)
        assert (command.name, bool(command.help)) == (name, True)


def test_the_version_is_that_of_the_distribution():
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.startswith("cometmq ")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("topic", "create"), "Missing argument 'topic'; see cometmq topic create --help\n"),
        (("topic", "list", "--quick"), "No such option: --quick"),
        (("produce", "T", "x", "--in-flight", "0"), "Invalid value for '--in-flight': 0 is not in"),
        (("topic", "lst"), "No such command 'lst'."),
        (("brokr",), "No such command 'brokr'."),
        (("--nonsense",), "No such option: --nonsense"),
        (("-n",), "Option '-n' requires an argument"),
        (("topic", "list", "-n"), "Option '-n' requires an argument"),
        (("help", "frob"), "No such command 'frob'"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(call, args, line):
    refused = call(*args)
    refused.assert_refused(2, line)
    assert "; see cometmq" in refused.err
    assert refused.err.endswith(" --help\n")


def test_a_group_without_a_command_prints_its_help(call):
    shown = call("topic")
    assert shown.err.startswith("Usage: cometmq topic ") or shown.out.startswith("Usage: cometmq")


def test_a_mistyped_command_is_answered_with_the_right_one():
    result = invoke("brokr")
    assert result.exit_code == 2
    assert "broker" in result.output


def test_an_error_that_a_person_can_mend_is_one_line(monkeypatch, capsys):
    def fails(**_):
        raise RequestTimeout("127.0.0.1:9876 did not\nanswer within 3 s")

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
    assert lines["fromAnotherVersion=1"] == "unknown, kept"


@pytest.mark.parametrize("program", programs.COMMANDS)
def test_each_setting_is_described(program):
    text = invoke(program, "--describe-settings").output
    port = re.compile(r"^adminHttpPort: an integer -?[01]..65535, default -?\d+$", re.MULTILINE)
    assert port.search(text)
    assert ("changeable while it runs" in text) == (program in {"namesrv", "broker", "txn-checker"})


@pytest.mark.parametrize(
    ("options", "line", "source"),
    [
        ((), "haListenPort=10912", "derived from listenPort"),
        (("--listen-port", "20911"), "haListenPort=20912", "derived from listenPort"),
        (("--listen-port", "0"), "haListenPort=0", "derived from listenPort"),
        (("--ha-listen-port", "7"), "haListenPort=7", "command line --ha-listen-port"),
        (("--ha-listen-port", "0"), "haListenPort=10912", "derived from listenPort"),
    ],
)
def test_the_printed_port_for_slaves_is_the_one_in_use(options, line, source):
    printed = invoke("broker", *options, "-p").output.splitlines()
    assert [it.split("#")[1].strip() for it in printed if it.split()[0] == line] == [source]


def test_the_important_settings_of_a_broker_are_printed_as_by_rocketmq(tmp_path):
    file = tmp_path / "x.conf"
    file.write_text("fileReservedTime=7\nhaListenPort=7\nfromAnotherVersion=1\n")
    result = invoke("broker", "-c", str(file), "-m")
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert {line[0].partition("=")[0] for line in lines} == IMPORTANT
    assert ["fileReservedTime=7", "#", "file", f"{file}:1"] in lines
    everything = invoke("broker", "-c", str(file), "-p").output.splitlines()
    assert {line.partition("=")[0] for line in everything} > {"haListenPort", *IMPORTANT}


def test_printing_settings_fails_for_a_mistyped_key(tmp_path):
    file = tmp_path / "x.conf"
    file.write_text("brokerNam=a\nfromAnotherVersion=1\nbrokerId=0\n")
    result = invoke("broker", "-c", str(file), "-p")
    assert result.exit_code == 1
    assert "# unknown, kept; did you mean brokerName?" in result.output
    line = f"cometmq: brokerNam in {file}:1 is no setting; did you mean brokerName?\n"
    assert result.stderr == line


def test_printing_settings_fails_for_a_line_that_is_no_setting(tmp_path):
    file = tmp_path / "x.conf"
    file.write_text("brokerId=0\n\nthis is prose\nbrokerName b\n")
    result = invoke("broker", "-c", str(file), "-p")
    assert result.exit_code == 1
    assert f"# file {file}:4" in result.output  # Java also accepts a blank as the separator
    assert result.stderr == (
        f"cometmq: {file}:3 is no setting, but 'this is prose': a setting is NAME=VALUE, and a"
        " comment begins with #\n"
    )


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
        (["broker", "--nonsense", "1"], "--nonsense: unknown option"),
        (["broker", "-c", "/nowhere/x.conf"], "cannot read /nowhere/x.conf"),
        (["namesrv", "--log-level", "loud"], "--log-level=loud: must be one of debug, info,"),
    ],
)
def test_bad_settings_are_one_line_and_status_2(args, line):
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.output.startswith(f"cometmq: {line}")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "place"),
    [
        (("standalone", "--data", ""), "standalone: --data"),
        (("standalone", "--data="), "standalone: --data"),
        (("produce", "orders", ""), "produce: the argument after orders"),
        (("consume", ""), "consume: the argument after consume"),
        (("topic", "describe", "orders", "-n", ""), "topic: -n"),
        (("lag", "payers", "-t", ""), "lag: -t"),
    ],
)
def test_an_empty_value_is_refused(args, place):
    result = invoke(*args)
    assert (result.exit_code, result.output) == (2, f"cometmq {place} is empty: give a value\n")


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("-n", ""), "-n"),
        (("--namesrv=",), "-n"),
        (("--access-key", "", "--secret-key", ""), "--access-key"),
    ],
)
def test_an_empty_value_before_the_command_is_refused(options, place):
    result = invoke(*options, "topic", "delete", "orders", "--yes")
    assert (result.exit_code, result.output) == (2, f"cometmq: {place} is empty: give a value\n")


@pytest.mark.parametrize("command", [("topic", "list"), ("topicList",), ("produce", "T", "x")])
def test_an_empty_variable_is_refused(command):
    result = invoke(*command, env={"NAMESRV_ADDR": ""})
    line = "cometmq: NAMESRV_ADDR is empty: give a value, or unset it\n"
    assert (result.exit_code, result.output) == (2, line)


def test_a_mistyped_option_of_a_program_is_answered_with_the_right_one():
    result = invoke("namesrv", "--listen-prt", "1")
    line = "cometmq: --listen-prt: unknown option; did you mean --listen-port?\n"
    assert (result.exit_code, result.output) == (2, line)


NUMBERS = [
    ("produce", "T", "x", "--rate"),
    ("produce", "T", "x", "--timeout"),
    ("consume", "T", "--timeout"),
    ("dlq", "replay", "g", "--rate"),
    ("startMonitoring", "--interval"),
]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1"])
@pytest.mark.parametrize("args", NUMBERS)
def test_numbers_that_are_not_finite_or_negative_are_refused(args, number):
    done = invoke(*args, number)
    assert done.exit_code == 2
    assert f"Invalid value for '{args[-1]}': " in done.output


def options_of(name, command):
    for param in command.params:
        yield name, param
    for child, found in getattr(command, "commands", {}).items():
        yield from options_of(f"{name} {child}", found)


def test_every_number_of_our_commands_has_a_lower_bound():
    for name, info in OWN.items():
        if info.panel == "Programs":
            continue  # their settings have separate bounds
        for path, param in options_of(name, load_command(name, info)):
            if param.type.name.startswith(("int", "float")):
                assert param.type.min is not None, f"{path} {param.opts}"


@pytest.mark.parametrize("args", [("acl",), ("ACL", "list"), ("configs", "get"), ("offsets",)])
def test_words_of_other_tools_lead_to_our_commands(args):
    done = invoke(*args)
    assert done.exit_code == 2
    assert f"No such command '{args[0]}'. See: " in done.output
    assert SUGGESTIONS[args[0].lower()][0] in done.output


def test_suggested_commands_exist_and_their_words_are_none():
    assert not SUGGESTIONS.keys() & {name.lower() for name in COMMANDS}
    for names in SUGGESTIONS.values():
        for name, *words in map(str.split, names):
            command = load_command(name, COMMANDS[name])
            assert not words or words[0] in command.commands


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (("topic", "create", "T", "--queues", 1, "--queues", 2), "--queues"),
        (("produce", "T", "x", "-n", "a:1", "--namesrv", "b:1"), "--namesrv"),
        (("-n", "a:1", "-n", "b:1", "topic", "list"), "--namesrv"),
        (("group", "alter", "g", "--enabled", "--no-enabled"), "--enabled/--no-enabled"),
        (("consume", "T", "--tag", "A", "--tag=B"), "--tag"),
        (("topic", "list", "--access-key", "a", "--access-key", "b"), "--access-key"),
    ],
)
def test_an_option_that_is_given_twice_is_refused(call, args, name):
    refused = call(*args)
    assert (refused.status, refused.out) == (2, "")
    assert f"{name} is given more than once: give it once" in refused.err


@pytest.mark.parametrize(
    "args",
    [
        ("topic", "list", "--json", "--json"),
        ("group", "delete", "g", "-y", "-y"),
        ("topic", "create", "T", "-b", "one", "-b", "two"),
        ("deleteTopic", "-t", "A", "-t", "B", "-c", "C"),
    ],
)
def test_switches_lists_and_options_of_mqadmin_may_be_repeated(call, args):
    refused = call(*args, "-n", f"127.0.0.1:{free_port()}")
    assert "no name server answers" in refused.err
    assert "more than once" not in refused.err
