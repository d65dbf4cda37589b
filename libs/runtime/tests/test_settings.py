# SPDX-License-Identifier: Apache-2.0
"""Settings come from four sources, are validated, and record their source."""

import os
from enum import StrEnum
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.setting_facts import PATH
from cometmq.runtime.settings import Origin, load, parse_options
from cometmq.runtime.settings.mistakes import LINE_FORM

MUTABLE = Meta(extra={"mutable": True})


class Flush(StrEnum):
    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


class StoreGroup(msgspec.Struct, frozen=True, rename="camel"):
    flush_disk_type: Annotated[Flush, Meta(description="When to answer."), MUTABLE] = Flush.ASYNC
    file_reserved_time: Annotated[int, Meta(ge=1, description="Hours."), MUTABLE] = 72
    delete_when: Annotated[str, Meta(description="Hour.", pattern="^[0-9;]+$")] = "04"
    delay: Annotated[
        str, Meta(description="Delay.", pattern="^[0-9]+s$", extra={"form": "seconds, such as 1s"})
    ] = "1s"
    mode: Annotated[str, Meta(description="Mode.", pattern="^(on|off|)$")] = ""


class Example(msgspec.Struct, frozen=True, rename="camel"):
    listen_port: Annotated[int, Meta(ge=0, le=65535, description="Port.")] = 10911
    namesrv_addr: Annotated[
        str | None, Meta(description="Name servers.", extra={"env": "NAMESRV_ADDR"})
    ] = None
    broker_ip1: Annotated[str, Meta(description="Address.")] = msgspec.field(
        default="127.0.0.1", name="brokerIP1"
    )
    trace_on: Annotated[bool, MUTABLE, "Traces."] = False
    guard: Annotated[bool, Meta(description="Protection.", extra={"guard": True})] = False
    ratio: Annotated[float, Meta(gt=0, lt=1, description="Share.")] = 0.5
    password: Annotated[str, Meta(description="Key.", extra={"secret": True})] = ""
    place: Annotated[str, PATH, "Folder."] = ""
    store: StoreGroup = StoreGroup()

    def __post_init__(self) -> None:
        if self.trace_on and self.listen_port == 1:
            raise ValueError("traceOn needs another listenPort than 1")
        if self.ratio == 0.9:
            raise ValueError("ratio: too large")


class Needy(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: Annotated[str, Meta(min_length=1, description="Name of the group.")]


def load_text(tmp_path, text="", name="broker.conf", env=None, cli=None):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(Example, prefix="COMETMQ_EXAMPLE", file=file, env=env or {}, cli=cli)


def test_a_stronger_source_wins_and_is_named(tmp_path):
    text = "listenPort=1\nfileReservedTime=2\nflushDiskType=SYNC_FLUSH\ntraceOn=false"
    env = {"COMETMQ_EXAMPLE_FILE_RESERVED_TIME": "3", "COMETMQ_EXAMPLE_TRACE_ON": "true"}
    loaded = load_text(tmp_path, text, env=env, cli={"listenPort": "5"})
    assert loaded.value.listen_port == 5
    assert loaded.value.store.file_reserved_time == 3
    assert loaded.value.store.flush_disk_type is Flush.SYNC
    assert loaded.value.trace_on is True
    file = str(tmp_path / "broker.conf")
    assert loaded.origins["flushDiskType"] == Origin("file", f"{file}:3")
    assert str(loaded.origins["traceOn"]) == "environment COMETMQ_EXAMPLE_TRACE_ON"
    assert str(loaded.origins["listenPort"]) == "command line --listen-port"


def test_own_variable_overrides_that_of_rocketmq():
    env = {"NAMESRV_ADDR": "a:1"}
    assert load(Example, prefix="X", env=env).value.namesrv_addr == "a:1"
    env["X_NAMESRV_ADDR"] = "b:1"
    assert load(Example, prefix="X", env=env).value.namesrv_addr == "b:1"


def test_unknown_keys_are_kept_and_returned(tmp_path):
    loaded = load_text(tmp_path, "sendMessageThreadPoolNums=8\nlistenPort=9")
    assert loaded.unknown == {"sendMessageThreadPoolNums": "8"}
    assert "sendMessageThreadPoolNums=8\n" in loaded.as_properties()
    assert "unknown, kept" in loaded.as_table()


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        ("garbage", {"garbage": "garbage"}),
        ("listenPort=1\nsome shopping list", {"some": "some shopping list"}),
        ("colour=red\nshape: round", {}),
        ("listenPort 7", {}),
        ("listenPrt 7", {}),  # misspelt, not prose
    ],
)
def test_lines_without_a_sign_are_probably_no_settings(tmp_path, text, prose):
    loaded = load_text(tmp_path, text)
    assert loaded.mistakes.prose == prose
    assert loaded.unknown.keys() >= prose.keys()
    place = f"{tmp_path / 'broker.conf'}:{len(text.splitlines())}"
    assert [loaded.mistakes.places[name] for name in prose] == [place for _ in prose]
    lines = [line for line in loaded.mistakes.lines() if "NAME=VALUE" in line]
    form = "a setting is NAME=VALUE, and a comment begins with #"
    assert lines == [f"{place} is no setting, but {it!r}: {form}" for it in prose.values()]


def test_a_setting_that_is_given_twice_is_named_with_both_lines(tmp_path):
    loaded = load_text(tmp_path, "listenPort=1\ncolour=red\n\nlistenPort=2\ncolour=blue\n")
    file = tmp_path / "broker.conf"
    assert (loaded.value.listen_port, loaded.unknown) == (2, {"colour": "blue"})
    assert loaded.mistakes.lines() == [
        f"{name} is given more than once, in {file}:{first} and {file}:{last}; the last value"
        " counts, as in RocketMQ"
        for name, first, last in (("listenPort", 1, 4), ("colour", 2, 5))
    ]
    text = "[one]\nlistenPort = 7\n[two]\nlistenPort = 8\n"
    (doubt,) = load_text(tmp_path, text, name="broker.toml").mistakes.lines()
    assert doubt.startswith(f"listenPort is given more than once, in {tmp_path}/broker.toml;")


def test_toml_with_tables_reads_like_properties(tmp_path):
    text = 'listenPort = 7\n[store]\nfileReservedTime = 9\ndeleteWhen = 4\nextra = "x"\n'
    loaded = load_text(tmp_path, text, name="broker.toml")
    assert loaded.value.listen_port == 7
    assert loaded.value.store == StoreGroup(file_reserved_time=9, delete_when="4")
    assert loaded.unknown == {"extra": "x"}


@pytest.mark.parametrize("name", ["broker.conf", "broker.toml"])
def test_a_byte_order_mark_hides_no_setting(tmp_path, name):
    """Windows editors write it; the first setting was ignored with it."""
    loaded = load_text(tmp_path, b"\xef\xbb\xbflistenPort = 7\r\nratio = 0.25\r\n", name=name)
    assert (loaded.value.listen_port, loaded.value.ratio, loaded.unknown) == (7, 0.25, {})


def test_a_latin_1_file_is_read_as_java_does(tmp_path):
    assert load_text(tmp_path, b"brokerIP1=h\xf6st").value.broker_ip1 == "h\u00f6st"


BAD = {
    "listenPort=99999": "listenPort=99999: must be an integer 0..65535 (from file FILE:1)",
    "\nlistenPort=x": "listenPort=x: must be an integer 0..65535 (from file FILE:2)",
    "fileReservedTime=0": "fileReservedTime=0: must be an integer >= 1 (from file FILE:1)",
    "ratio=1": "ratio=1: must be a number > 0 and < 1 (from file FILE:1)",
    "traceOn=maybe": "traceOn=maybe: must be true or false (from file FILE:1)",
    "traceOn=" + "x" * 201: f"traceOn={'x' * 200}...: must be true or false (from file FILE:1)",
    "traceOn=": "traceOn=: must be true or false (from file FILE:1)",
    "traceOn=1": "traceOn=1: must be true or false (from file FILE:1)",
    "listenPort=": "listenPort=: must be an integer 0..65535 (from file FILE:1)",
    "listenPort=\nratio=a\\nb": (
        "listenPort=: must be an integer 0..65535 (from file FILE:1)\n"
        "ratio=a\\nb: must be a number > 0 and < 1 (from file FILE:2)"
    ),
    "flushDiskType=NO": (
        "flushDiskType=NO: must be one of SYNC_FLUSH, ASYNC_FLUSH (from file FILE:1)"
    ),
    "deleteWhen=noon": "deleteWhen=noon: must be text matching ^[0-9;]+$ (from file FILE:1)",
    "delay=1": "delay=1: must be seconds, such as 1s (from file FILE:1)",
    "mode=of": "mode=of: must be one of on, off, or empty (from file FILE:1)",
    "traceOn=true\nlistenPort=1": "traceOn needs another listenPort than 1",
    "a=\\u1": "cannot read FILE: line 1: malformed \\uxxxx escape",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_value_is_one_line_that_names_key_value_bounds_and_source(tmp_path, text):
    with pytest.raises(SettingsError) as caught:
        load_text(tmp_path, text)
    assert str(caught.value) == BAD[text].replace("FILE", str(tmp_path / "broker.conf"))


def test_a_toml_number_is_no_boolean(tmp_path):
    with pytest.raises(SettingsError, match="traceOn=1: must be true or false"):
        load_text(tmp_path, "traceOn = 1", name="broker.toml")


def test_the_faults_of_all_sources_are_reported_at_once(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=x\npassword=y\nguardd=on\n")
    with pytest.raises(SettingsError) as caught:
        load(
            Example,
            prefix="COMETMQ_EXAMPLE",
            file=file,
            env={"COMETMQ_EXAMPLE_RATIO": "2"},
            cli={"nothing": "1"},
            args=["stray", "--trace", "on", "--delete-when=noon", "--file-reserved-time"],
        )
    assert str(caught.value).splitlines() == [
        f"guardd=on: unknown setting; did you mean guard? (from file {file}:3)",
        "stray: unknown option",
        "--trace: unknown option; did you mean --trace-on?",
        "--file-reserved-time needs a value: an integer >= 1",
        "nothing: unknown setting (from command line)",
        f"listenPort=x: must be an integer 0..65535 (from file {file}:1)",
        "ratio=2: must be a number > 0 and < 1 (from environment COMETMQ_EXAMPLE_RATIO)",
        "deleteWhen=noon: must be text matching ^[0-9;]+$ (from command line --delete-when)",
    ]


def test_misspelt_names_are_reported_with_the_first_bad_value(tmp_path):
    file = tmp_path / "broker.conf"
    with pytest.raises(SettingsError) as caught:
        load_text(tmp_path, "listenPort=x\nlistnPort=1\nratio=0.1\nwhatever this is\nratio=0.2\n")
    repeated, prose = "the last value counts, as in RocketMQ", f"'whatever this is': {LINE_FORM}"
    assert str(caught.value).splitlines() == [
        f"listenPort=x: must be an integer 0..65535 (from file {file}:1)",
        f"listnPort in {file}:2 is no setting; did you mean listenPort?",
        f"ratio is given more than once, in {file}:3 and {file}:5; {repeated}",
        f"{file}:4 is no setting, but {prose}",
    ]


def test_a_value_that_the_struct_refuses_is_reported_with_its_place(tmp_path):
    with pytest.raises(SettingsError) as caught:
        load_text(tmp_path, "listenPort=2\nratio=0.9\n")
    assert str(caught.value) == f"ratio: too large (from file {tmp_path}/broker.conf:2)"


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("COMETMQ_LISTEN_PORT", "COMETMQ_EXAMPLE_LISTEN_PORT"),
        ("COMETMQ_LISTN_PORT", "COMETMQ_EXAMPLE_LISTEN_PORT"),
        ("COMETMQ_EXAMPLE_LISTN_PORT", "COMETMQ_EXAMPLE_LISTEN_PORT"),
        ("COMETMQ_EXAMPEL_LISTEN_PORT", "COMETMQ_EXAMPLE_LISTEN_PORT"),
        ("COMETMQ_NAMESRV_ADDR", "COMETMQ_EXAMPLE_NAMESRV_ADDR"),
        ("COMETMQ_LOG_LEVL", "COMETMQ_LOG_LEVEL"),
        ("COMETMQ_EXAMPLE_LOG_LEVEL", "COMETMQ_LOG_LEVEL"),
        ("COMETMQ_EXAMPLE_COLOUR", ""),
    ],
)
def test_a_variable_that_no_program_reads_is_named_with_the_right_one(name, guess):
    loaded = load(Example, prefix="COMETMQ_EXAMPLE", env={name: "7"})
    assert loaded.mistakes.unread == {name: guess}
    advice = f"; did you mean {guess}?" if guess else ""
    assert loaded.mistakes.lines() == [f"no program reads the variable {name}{advice}"]
    with pytest.raises(SettingsError) as caught:
        load(Example, prefix="COMETMQ_EXAMPLE", env={name: "7"}, cli={"ratio": "2"})
    assert str(caught.value).splitlines()[1:] == loaded.mistakes.lines()


def test_variables_of_others_are_no_mistakes():
    variables = {
        "COMETMQ_EXAMPLE_LISTEN_PORT": "7",
        "COMETMQ_BROKER_LISTN_PORT": "7",  # the broker reports these two
        "COMETMQ_BROKR_NAMESRV_ADDR": "7",
        "COMETMQ_LOG_LEVEL": "info",
        "COMETMQ_IMAGE": "cometmq:1",
        "LISTEN_PORT": "7",
        # Kubernetes sets these for the services cometmq-example and cometmq-listen
        "COMETMQ_EXAMPLE_SERVICE_HOST": "10.0.0.1",
        "COMETMQ_EXAMPLE_SERVICE_PORT": "9876",
        "COMETMQ_EXAMPLE_SERVICE_PORT_REMOTING": "9876",
        "COMETMQ_EXAMPLE_PORT": "tcp://10.0.0.1:9876",
        "COMETMQ_EXAMPLE_PORT_9876_TCP": "tcp://10.0.0.1:9876",
        "COMETMQ_EXAMPLE_PORT_9876_TCP_PROTO": "tcp",
        "COMETMQ_EXAMPLE_PORT_9876_TCP_PORT": "9876",
        "COMETMQ_EXAMPLE_PORT_9876_TCP_ADDR": "10.0.0.1",
        "COMETMQ_LISTEN_PORT": "tcp://10.0.0.2:9876",
    }
    loaded = load(Example, prefix="COMETMQ_EXAMPLE", env=variables)
    assert loaded.mistakes.unread == {}
    assert loaded.value.listen_port == 7


@pytest.mark.parametrize("name", ["COMETMQ_GUARD", "COMETMQ_EXAMPLE_GUARDD"])
def test_a_misspelt_variable_of_a_guard_is_refused(name):
    with pytest.raises(SettingsError) as caught:
        load(Example, prefix="COMETMQ_EXAMPLE", env={name: "true"})
    assert str(caught.value) == (
        f"{name}=true: no program reads the variable {name}; did you mean COMETMQ_EXAMPLE_GUARD?"
    )


def test_a_part_of_a_programs_settings_knows_no_mistakes(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("guardd=1\nlistnPort=7\n")
    env = {"COMETMQ_EXAMPLE_LISTN_PORT": "7"}
    loaded = load(Example, prefix="COMETMQ_EXAMPLE", file=file, env=env, is_part=True)
    assert loaded.mistakes.lines() == []


def test_two_programs_share_a_file_and_neither_takes_a_key_of_the_other_as_unknown(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("guardd=7\nsharedKe=8\ntraceOn=true\nlistenPort=5\ncolour=1\n")
    with pytest.raises(SettingsError, match="guardd=7: unknown setting; did you mean guard"):
        load(Example, prefix="X", file=file, env={})
    first = load(Example, prefix="X", file=file, env={}, others={"guardd", "sharedKey"})
    assert first.mistakes.misspelt == {"sharedKe": "sharedKey"}
    assert first.mistakes.places.keys() == {"sharedKe", "colour"}
    assert "guardd=7" in first.as_saved_properties(), "a save keeps it for the other program"
    second = load(Example, prefix="X", file=file, env={}, only={"traceOn"})
    assert (second.value, second.unknown) == (Example(trace_on=True), {})
    assert second.origins["traceOn"].place == f"{file}:3"


def test_a_path_may_begin_with_a_home_folder_that_exists(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert load_text(tmp_path, "place=~/data\n").value.place == "/home/me/data"
    assert load_text(tmp_path, "place=~\n").value.place == "/home/me"
    assert load_text(tmp_path, "place=./~data\nlistenPort=7\n").value.place == "./~data"
    with pytest.raises(SettingsError) as caught:
        load_text(tmp_path, "place=~nosuchuser/data\npassword=~secret\n")
    assert str(caught.value) == (
        "place=~nosuchuser/data: this machine has no user nosuchuser; give the whole path (from"
        f" file {tmp_path / 'broker.conf'}:1)"
    )
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 54_321)
    with pytest.raises(SettingsError, match="place=~/data: this user has no home folder; give"):
        load_text(tmp_path, "place=~/data\n")


def test_an_unreadable_file_is_reported_with_the_other_faults(tmp_path):
    with pytest.raises(SettingsError) as caught:
        load(Example, prefix="X", file=tmp_path / "none.conf", env={"X_TRACE_ON": "yes"})
    assert str(caught.value).splitlines() == [
        f"cannot read {tmp_path / 'none.conf'}: No such file or directory",
        "traceOn=yes: must be true or false (from environment X_TRACE_ON)",
    ]


def test_bad_toml_is_a_settings_error(tmp_path):
    with pytest.raises(SettingsError, match="cannot read"):
        load_text(tmp_path, "= 1", name="x.toml")


def test_a_required_setting_says_what_it_is_for():
    with pytest.raises(SettingsError, match=r"brokerName must be set: Name of the group\."):
        load(Needy, prefix="X", env={})
    with pytest.raises(SettingsError, match="must be non-empty text"):
        load(Needy, prefix="X", env={}, cli={"brokerName": " "})


def test_an_update_changes_mutable_fields_in_a_new_value():
    loaded = load(Example, prefix="X", env={})
    changed = loaded.updated({"fileReservedTime": "5", "listenPort": "10911", "nobodyKnows": "1"})
    assert changed.value.store.file_reserved_time == 5
    assert str(changed.origins["fileReservedTime"]) == "changed while running"
    assert loaded.value.store.file_reserved_time == 72
    assert changed.unknown == {}


def test_changed_since_returns_keys_with_other_values(tmp_path):
    loaded = load_text(tmp_path, "waitTime=1")
    changed = loaded.updated({"waitTime": "2", "nobodyKnows": "3"})
    assert changed.unknown == {"waitTime": "2"}
    assert changed.changed_since(loaded) == {"waitTime"}
    assert loaded.knows("waitTime")
    assert not loaded.knows("nobodyKnows")


@pytest.mark.parametrize(
    "name",
    ["secretKey", "dbPassword", "DB_PASSWD", "apiToken", "accessKey", "tls.credentials", "my.pwd"],
)
def test_unknown_settings_that_may_be_secrets_are_not_shown(tmp_path, name):
    file = tmp_path / "a.conf"
    file.write_text(f"{name}=hunter2\ncolour=blue\nproxy=http://me:hunter2@host/x\n")
    loaded = load(Example, prefix="X", env={}, file=file)
    assert loaded.unknown[name] == "hunter2"
    for text in (loaded.as_table(), loaded.as_properties()):
        assert "hunter2" not in text
        assert "blue" in text
        assert "@host/x" in text
    assert f"{name}=******" in loaded.as_table()
    assert name not in loaded.as_properties()
    assert "hunter2" in loaded.as_saved_properties()  # the broker rewrites its file


@pytest.mark.parametrize("login", ["me:hunter2", "me:at@hunter2", "hunter2"])
def test_logins_in_urls_are_shown_of_no_setting(tmp_path, login):
    file = tmp_path / "a.conf"
    file.write_text(f"namesrvAddr=http://{login}@host/x\nproxy=http://{login}@host/x\n")
    loaded = load(Example, prefix="X", env={}, file=file)
    assert loaded.value.namesrv_addr == f"http://{login}@host/x"
    for text in (loaded.as_table(), loaded.as_properties()):
        assert "hunter2" not in text
        assert text.count("://******@host/x") == 2
    assert loaded.as_saved_properties().count("hunter2") == 2
    with pytest.raises(SettingsError, match=r"delay=http://\*{6}@host: must be"):
        load(Example, prefix="X", env={}, cli={"delay": f"http://{login}@host"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listenPort": "1"}, "cannot be changed while the program runs"),
        ({"fileReservedTime": "0"}, "must be an integer >= 1$"),
        ({"fileReservedTime": str(1 << 63)}, "must be an integer >= 1 of at most 64 bits$"),
        ({"fileReservedTime": "9" * 5_000}, "must be an integer >= 1"),
        ({"fileReservedTime": "5", "brokerIP1": "::1"}, "brokerIP1 cannot be changed"),
        (
            {"fileReservedTime": "0", "listenPort": "1", "brokerIP1": "::1", "traceOn": "yes"},
            "(?s)listenPort cannot.*brokerIP1 cannot.*traceOn=yes.*fileReservedTime=0",
        ),
    ],
)
def test_a_bad_update_changes_nothing(changes, message):
    loaded = load(Example, prefix="X", env={})
    with pytest.raises(SettingsError, match=message):
        loaded.updated(changes)
    assert loaded.value == Example()


def test_an_integer_may_be_as_large_as_a_java_long(tmp_path):
    loaded = load_text(tmp_path, f"fileReservedTime={(1 << 63) - 1}")
    assert loaded.value.store.file_reserved_time == (1 << 63) - 1


def test_as_properties_loads_again_to_the_same(tmp_path):
    first = load(Example, prefix="X", env={}, cli={"brokerIP1": "a\\b", "traceOn": "true"})
    assert "namesrvAddr" not in first.as_properties()
    assert load_text(tmp_path, first.as_properties()).value == first.value


def test_only_values_of_the_file_and_of_run_time_are_saved(tmp_path):
    env = {"COMETMQ_EXAMPLE_RATIO": "0.1"}
    loaded = load_text(tmp_path, "listenPort=5\nother=1", env=env, cli={"brokerIP1": "::1"})
    changed = loaded.updated({"traceOn": "true"})
    assert changed.as_saved_properties() == "other=1\nlistenPort=5\ntraceOn=true\n"


def test_the_table_hides_secrets_and_shows_sources():
    table = load(Example, prefix="X", env={"X_PASSWORD": "hush"}).as_table()
    assert "hush" not in table
    assert "password=******" in table
    assert "# environment X_PASSWORD" in table


def test_options_are_the_names_in_kebab_case():
    args = ["--listen-port", "5", "--broker-ip1=::1", "--trace-on", "--file-reserved-time", "3"]
    assert parse_options(Example, args) == {
        "listenPort": "5",
        "brokerIP1": "::1",
        "traceOn": "true",
        "fileReservedTime": "3",
    }


def test_a_variable_that_is_not_utf8_is_named(tmp_path):
    env = {"NAMESRV_ADDR": os.fsdecode(b"\xbc\xfc")}
    with pytest.raises(SettingsError, match=r"in UTF-8.*NAMESRV_ADDR"):
        load_text(tmp_path, env=env)
