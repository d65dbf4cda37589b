# SPDX-License-Identifier: Apache-2.0
"""`cometmq standalone` has one settings file: its broker and its txn-checker read it."""

from typing import Any

import pytest

from cometmq.cli.programs.children import Options
from cometmq.cli.programs.running import warn_unknown
from cometmq.cli.programs.suite import load_suite
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.settings.mistakes import refuse_wrong_file

from .starting import refuse, suite_options


@pytest.fixture
def read(tmp_path):
    """Return a function that loads a suite with a text as its file."""
    file = tmp_path / "suite.conf"

    def read(text):
        file.write_text(text)
        suite = load_suite(file, Options(data=tmp_path / "data", http_port=-1))
        refuse_wrong_file("broker", suite.broker, file)
        return suite

    return read


class Log:
    def __init__(self):
        self.events = []

    def warning(self, event, **facts):
        self.events.append((event, facts))


def test_its_txn_checker_reads_the_file(read, monkeypatch):
    text = "transactionCheckInterval=1000\ntransactionCheckMax=3\ntransactionTimeOut=77\n"
    suite = read(f"{text}fileReservedTime=9\nquestionsPerSecond=5\n")
    assert suite.broker.ineffective() == {}
    checker = suite.txn_checker
    assert checker.value.transaction_check_interval == 1_000
    assert checker.value.transaction_check_max == 3
    assert checker.value.transaction_time_out == 77
    assert checker.value.file_reserved_time == 9
    assert checker.value.questions_per_second == 5
    monkeypatch.setenv("COMETMQ_TXN_CHECKER_TRANSACTION_CHECK_MAX", "4")
    assert read(text).txn_checker.value.transaction_check_max == 4, "variables win, as always"


def test_only_keys_that_no_program_of_it_reads_are_unknown(read):
    log: Any = Log()
    warn_unknown(read("persistInterval=1000\ntransactionCheckMax=3\n").broker, log)
    assert log.events == []
    suite = read("persistIntervall=1000\nscanIntervalMs=5\nbrokerId=0\n")
    warn_unknown(suite.broker, log)
    assert log.events == [
        (
            "settings.unknown",
            {
                "keys": ["persistIntervall", "scanIntervalMs"],
                "did_you_mean": {"persistIntervall": "persistInterval"},
            },
        )
    ]
    assert [line.partition(" in ")[0] for line in suite.mistakes()] == ["persistIntervall"]


def test_a_file_with_settings_of_its_txn_checker_alone_is_its_file(read):
    assert read("pollNameServerInterval=100\n").txn_checker.value.poll_name_server_interval == 100
    with pytest.raises(SettingsError, match="is a settings file of cometmq namesrv"):
        read("orderMessageEnable=true\n")


def test_its_txn_checker_takes_neither_folders_nor_accounts_of_the_broker(read, tmp_path):
    store = tmp_path / "data" / "store"
    text = f"storePathRootDir={store}\naccessKey=broker\nsecretKey=12345678\naclEnable=true\n"
    suite = read(text)
    assert suite.txn_checker.value.store_path_root_dir == str(tmp_path / "data" / "txn-checker")
    assert suite.own_account is not None
    assert suite.txn_checker.value.access_key == suite.own_account.access_key
    assert suite.broker.value.access_key == "broker"


def test_an_invalid_setting_of_its_txn_checker_is_refused_with_its_line(tmp_path):
    (tmp_path / "x.conf").write_text("brokerId=0\ntransactionCheckMax=0\n")
    line = refuse("standalone", *suite_options(tmp_path / "data"), "-c", "x.conf", cwd=tmp_path)
    assert line == (
        "cometmq: transactionCheckMax=0: must be an integer 1..65535 (from file x.conf:2)"
    )


@pytest.mark.parametrize(
    ("host", "bound", "namesrv"),
    [
        ("::1", "::1", "[::1]:9"),
        ("[::1]", "::1", "[::1]:9"),
        ("localhost", "127.0.0.1", "127.0.0.1:9"),
        ("192.0.2.1", "", "127.0.0.1:9"),
    ],
)
def test_only_a_host_of_the_network_opens_ports_to_it(tmp_path, host, bound, namesrv):
    suite = load_suite(None, Options(data=tmp_path, host=host, http_port=-1))
    assert suite.broker.value.bind_address == suite.namesrv.value.bind_address == bound
    assert suite.namesrv_address(9) == namesrv
