# SPDX-License-Identifier: Apache-2.0
"""Wrong usage, wrong settings and wrong words are answered with the right ones."""

import asyncio
import re
from contextlib import contextmanager
from threading import Thread

import pytest

from cometmq.cli import main as cli
from cometmq.cli.hints import SUGGESTIONS
from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS
from cometmq.cli.programs.broker import IMPORTANT
from cometmq.peers.ports import free_port
from cometmq.remoting.errors import RequestTimeout
from cometmq.runtime import programs

from .invoking import OWN, invoke


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
        (("topic", "list", "-n"), "Option '-n' requires an argument; see cometmq topic list"),
        (("consume", "T", "--tag"), "Option '--tag' requires an argument; see cometmq consume"),
        (
            ("bench", "send", "--rate", "fast"),
            "Invalid value for '--rate': 'fast' is not a valid float range",
        ),
        (
            ("topic", "create", "T", "--queues", "1.5"),
            "Invalid value for '--queues': '1.5' is not a valid int range",
        ),
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
        (["txn-checker"], "namesrvAddr must be set (-n HOST:PORT): the txn-checker finds"),
        (["console"], "namesrvAddr must be set (-n HOST:PORT): the console finds"),
        (["exporter"], "namesrvAddr must be set (-n HOST:PORT): the exporter finds"),
        (["broker", "-c", ""], "-c is empty: give the path of a file"),
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


def test_an_http_server_is_recognised(call):
    async def answer(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    with serving(answer) as port:
        refused = call("lag", "-n", f"127.0.0.1:{port}")
    assert refused.status == 1
    assert "it answers in HTTP, so it is neither a name server nor a broker" in refused.err
    assert "1213486160" not in refused.err


@contextmanager
def serving(answer):
    """Serve connections on a free port in a thread of their own."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.close()
