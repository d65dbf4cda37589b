# SPDX-License-Identifier: Apache-2.0
"""Mistakes in settings files are found before a program reads them."""

import pytest


@pytest.fixture
def check(call, tmp_path):
    def check(text, *options, mode=0o600, name="some.conf"):
        file = tmp_path / name
        file.write_text(text)
        file.chmod(mode)
        return call("config", "check", file, *options)

    return check


def test_a_right_file_is_called_right_and_its_program_is_found(check):
    done = check("brokerName=a\nlistenPort=10911\n")
    assert done.status == 0
    assert "settings of cometmq broker" in done.out
    assert "Nothing is wrong." in done.out
    assert check("kvConfigPath=/x\n", "--json").json["program"] == "namesrv"
    assert check("questionsPerSecond=5\n", "--json").json["program"] == "txn-checker"
    assert check("listenPort = 9876\n", "--program", "namesrv", name="a.toml").status == 0


@pytest.mark.parametrize(
    ("text", "status", "level", "words"),
    [
        ("brokerName=a\nlistenPort=many\n", 2, "error", "listenPort=many"),
        ("brokerName=a\nlistenProt=1\n", 1, "warning", "did you mean listenPort?"),
        ("brokerName=a\nbrokerName=b\n", 1, "warning", "given more than once"),
        ("brokerName=a\naclEnabel=true\n", 2, "error", "did you mean aclEnable?"),
        ("brokerName=a\nmyTool=1\n", 0, "note", "myTool is no setting of cometmq broker"),
        ("brokerName=a\nthis is prose\n", 1, "warning", "is no setting, but"),
    ],
)
def test_each_mistake_has_a_level(check, text, status, level, words):
    done = check(text, "--json")
    assert done.status == status
    assert f'"level": "{level}"' in done.out
    assert words in done.out


def test_secrets_that_others_can_read_are_named_with_the_remedy(check):
    text = "brokerName=a\ntls.server.keyPassword=secret\n"
    done = check(text, mode=0o644)
    assert done.status == 1
    assert "tls.server.keyPassword" in done.out
    assert "chmod 600" in " ".join(done.out.split())
    assert "secret\n" not in done.out
    assert check(text).status == 0


def test_a_file_of_another_program_or_of_none_is_an_error(check):
    assert (
        "is a settings file of cometmq namesrv"
        in check("kvConfigPath=/x\n", "--program", "broker").out
    )
    assert check("a: b\n").status == 2
    assert check("", "--program", "brokr").status == 2


def test_names_with_escapes_are_shown_escaped(check):
    done = check("brokerName=a\n\x1b[31mred=1\n")
    assert "\x1b" not in done.out
    assert "\\x1b[31mred" in done.out


def test_keys_of_rocketmq_without_effect_make_a_file_of_the_name_server(check):
    done = check("serverWorkerThreads=8\n", "--program", "namesrv")
    assert done.status == 0
    assert "serverWorkerThreads has no effect: " in done.out


REFUSED = [
    ("enableDLegerCommitLog=true", "DLedger"),
    ("brokerRole=SLAVE", "brokerId"),
    ("brokerIP1=127.0.0.1:10911", "has a port"),
    ("brokerIP1=no-such-host.invalid", "cannot be resolved"),
    ("haListenPort=10911", "have the same port"),
    ("accessKey=alone", "secretKey"),
    ("controlPort=10", "groupRecord"),
    ("authenticationEnabled=true", "plain_acl.yml"),
    ("aclEnable=true\naclFile=broken.yml", "broken.yml"),
]


@pytest.mark.parametrize(("text", "word"), REFUSED)
def test_what_a_start_refuses_is_an_error(check, call, tmp_path, monkeypatch, text, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yml").write_text("accounts: [")
    found = check(f"{text}\nbrokerName=b\nlistenPort=10911\nstorePathRootDir={tmp_path}/s\n")
    started = call("broker", "-c", tmp_path / "some.conf")
    assert (found.status, started.status) == (2, 2)
    assert word in " ".join(found.out.split())
    assert word in " ".join((started.out + started.err).split())


def test_a_file_is_checked_for_the_program_that_it_is_named_after(check):
    text = "listenPort=9876\nrocketmqHome=/opt/rocketmq\n"
    assert check(text, "--json", name="namesrv.conf").json["program"] == "namesrv"
    assert check(text, "--json", name="broker-a.conf").json["program"] == "broker"
    refused = check(f"{text}enableControllerInNamesrv=true\n", name="namesrv-n0.conf")
    assert refused.status == 2
    assert "cometmq elector" in " ".join(refused.out.split())
