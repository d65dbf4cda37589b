# SPDX-License-Identifier: Apache-2.0
"""The certificates that a program's settings file names."""

import pytest

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.tls_keys import expiries_named_in


@pytest.fixture
def config(tmp_path):
    (tmp_path / "own.pem").write_text(self_signed_pem("exporter"), encoding="utf-8")

    def write(text):
        path = tmp_path / "exporter.conf"
        path.write_text(text.replace("FOLDER", str(tmp_path)), encoding="utf-8")
        return path

    return write


def test_certificates_of_a_client_are_found(config):
    found = expiries_named_in(
        config("tls.enable=true\ntls.client.certPath=FOLDER/own.pem\nnamesrvAddr=n:9876\n")
    )
    assert list(found) == ["tls.client.certPath"]
    assert found["tls.client.certPath"] > SystemClock().now_ms() / 1_000


def test_a_file_beside_it_counts_too(config, tmp_path):
    (tmp_path / "tls.properties").write_text(f"tls.client.trustCertPath={tmp_path}/own.pem\n")
    found = expiries_named_in(config("tls.enable=true\ntls.config.file=FOLDER/tls.properties\n"))
    assert list(found) == ["tls.client.trustCertPath"]


@pytest.mark.parametrize(
    "text",
    ["tls.client.certPath=FOLDER/own.pem\n", "tls.enable=true\ntls.client.certPath=FOLDER/none\n",
     "tls.enable=true\ntls.client.certPath=FOLDER/exporter.conf\n"],
)  # fmt: skip
def test_without_tls_or_a_certificate_there_is_nothing(config, text):
    assert expiries_named_in(config(text)) == {}


def test_a_wrong_settings_file_is_refused(config, tmp_path):
    with pytest.raises(SettingsError):
        expiries_named_in(tmp_path / "missing.conf")
    with pytest.raises(SettingsError):
        expiries_named_in(config("tls.enable=perhaps\n"))
