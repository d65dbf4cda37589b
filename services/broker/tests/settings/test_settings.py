# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import pytest

from cometmq.broker.settings import BrokerSettings
from cometmq.broker.settings.accepted import AcceptedSettings
from cometmq.remoting.errors import SettingsError
from cometmq.runtime import properties
from cometmq.runtime.settings import Loaded, load
from cometmq.runtime.settings.fields import fields_of
from cometmq.store.settings import StoreSettings
from cometmq.testing.broker import expected_answer
from cometmq.testing.remoting.golden import load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
UNSET = {  # settings of BrokerConfig and MessageStoreConfig that a broker's answer leaves out
    "dLegerGroup", "dLegerPeers", "dLegerSelfId", "haMasterAddress", "messageStorePlugIn",
    "namesrvAddr", "preferredLeaderId", "readOnlyCommitLogStorePaths", "storePathDLedgerCommitLog",
}  # fmt: skip


def loaded(**given: str) -> Loaded[BrokerSettings]:
    return load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given)


def test_every_key_of_rocketmq_is_known() -> None:
    keys = set(UNSET)
    for exchange in load_exchanges(GOLDEN, "026-*"):
        keys |= properties.parse(expected_answer(exchange).body.decode()).keys()

    assert len(keys) > 180
    assert keys - fields_of(BrokerSettings).keys() == set()


def test_every_setting_without_effect_has_a_reason() -> None:
    accepted, store = fields_of(AcceptedSettings), fields_of(StoreSettings)
    silent = [
        name
        for name in accepted.keys() - store.keys()
        if not accepted[name].is_ineffective or not accepted[name].description
    ]
    assert silent == []


def test_ineffective_settings_are_reported() -> None:
    settings = loaded(enableLmq="true", sendMessageThreadPoolNums="16", brokerPermission="4")

    assert settings.ineffective() == {
        "enableLmq": "Accepted; light message queues (LMQ) are not implemented.",
        "sendMessageThreadPoolNums": (
            "Accepted; one event loop serves all requests, without thread pools."
        ),
    }


def test_settings_that_only_a_txn_checker_reads_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("transactionCheckMax=5\ntransactionTimeOut=6000\n")
    env = {"COMETMQ_TEST_TRANSACTION_CHECK_INTERVAL": "5"}
    alone = load(BrokerSettings, prefix="COMETMQ_TEST", env=env, file=file)
    ineffective = alone.ineffective()
    assert ineffective.keys() == {"transactionCheckMax", "transactionCheckInterval"}
    assert "txn-checker of `cometmq standalone`" in ineffective["transactionCheckMax"]

    others = {"transactionCheckMax", "transactionTimeOut", "transactionCheckInterval"}
    shared = load(BrokerSettings, prefix="COMETMQ_TEST", env=env, file=file, others=others)
    assert shared.ineffective().keys() == {"transactionCheckInterval"}, "not in the file"
    changed = shared.updated({"transactionTimeOut": "7"})
    assert changed.ineffective().keys() == {"transactionCheckInterval"}


@pytest.mark.parametrize(
    ("name", "value"), [("enableLmq", "false"), ("warmMapedFileEnable", "false")]
)
def test_rocketmqs_defaults_are_not_reported(name: str, value: str) -> None:
    assert loaded(**{name: value}).ineffective() == {}


@pytest.mark.parametrize("name", BrokerSettings.FOREIGN.refused)
def test_keys_of_rocketmq_5_that_mean_safety_end_the_start(tmp_path: Path, name: str) -> None:
    file = tmp_path / "broker.conf"
    refusal = BrokerSettings.FOREIGN.refused[name]
    for value in refusal.accepted:
        file.write_text(f"brokerName=b\n{name}={value}\n")
        load(BrokerSettings, prefix="COMETMQ_TEST", env={}, file=file)
    asking = "false" if "true" in refusal.accepted else "true"
    file.write_text(f"brokerName=b\n{name}={asking}\n")
    with pytest.raises(SettingsError, match=f"^{name}=.*; .+ \\(from file {file}:2\\)$"):
        load(BrokerSettings, prefix="COMETMQ_TEST", env={}, file=file)


def test_passwords_of_rocketmq_5_are_not_shown_to_tools(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text('brokerName=b\ninitAuthenticationUser={"username":"a","password":"12345"}\n')
    settings = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, file=file)
    assert "12345" not in settings.as_properties() + settings.as_table()
