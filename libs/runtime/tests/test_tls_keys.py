# SPDX-License-Identifier: Apache-2.0
"""TLS settings under RocketMQ's keys: from a program's settings, and from `tls.properties`."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.settings import TlsMode, TlsSettings
from cometmq.remoting.transport.tls_contexts import client_context, name_of, server_context
from cometmq.runtime import tls_keys
from cometmq.runtime.settings import load
from cometmq.runtime.tls_keys import client_tls, client_tls_of_file, server_tls


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    tls_server: tls_keys.ServerKeys = msgspec.field(default_factory=tls_keys.ServerKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD
    tls_client: tls_keys.ClientKeys = msgspec.field(default_factory=tls_keys.ClientKeys)


@pytest.fixture(autouse=True)
def _no_file_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tls_keys, "CONFIG_FILE", str(tmp_path / "absent.properties"))


def bare(tls: TlsSettings) -> TlsSettings:
    """Return the settings without the names that error messages use."""
    return msgspec.structs.replace(tls, names=())


def settings(**given: str) -> Settings:
    file = given.pop("file", tls_keys.CONFIG_FILE)
    names = {"tls.config.file": file, **{n.replace("__", "."): v for n, v in given.items()}}
    return load(Settings, prefix="COMETMQ_TEST", env={}, cli=names).value


CERT = {"tls__server__certPath": "/c.pem", "tls__server__keyPath": "/k.pem"}
OWN: dict[str, Any] = {"cert_path": Path("/c.pem"), "key_path": Path("/k.pem"), "test_mode": False}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, TlsSettings()),
        ({"tls__server__mode": "enforcing"}, TlsSettings(mode=TlsMode.ENFORCING)),
        (CERT, TlsSettings(**OWN)),
        ({**CERT, "tls__server__keyPassword": "p"}, TlsSettings(**OWN, key_password="p")),
        ({**CERT, "tls__test__mode__enable": "true"}, TlsSettings()),
        ({"tls__test__mode__enable": "false"}, TlsSettings(test_mode=False)),
        (
            {**CERT, "tls__server__need__client__auth": "OPTIONAL"},
            TlsSettings(**OWN, need_client_auth="optional"),
        ),
        (
            {**CERT, "tls__server__authClient": "true", "tls__server__trustCertPath": "/t.pem"},
            TlsSettings(**OWN, need_client_auth="require", trust_cert_path=Path("/t.pem")),
        ),
        (
            {"tls__server__need__client__auth": "require"},
            TlsSettings(need_client_auth="require"),
        ),
    ],
)
def test_server_settings(given: dict[str, str], expected: TlsSettings) -> None:
    assert server_tls(settings(**given)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, TlsSettings()),
        ({"tls__enable": "true"}, TlsSettings(enable=True)),
        ({"useTLS": "true"}, TlsSettings(enable=True)),
        (
            {
                "tls__enable": "true", "tls__client__authServer": "true",
                "tls__client__trustCertPath": "/t.pem", "tls__client__certPath": "/c.pem",
                "tls__client__keyPath": "/k.pem",
            },
            TlsSettings(
                enable=True, auth_server=True, trust_cert_path=Path("/t.pem"),
                cert_path=Path("/c.pem"), key_path=Path("/k.pem"),
            ),
        ),
    ],
)  # fmt: skip
def test_client_settings(given: dict[str, str], expected: TlsSettings) -> None:
    assert client_tls(settings(**given)) == expected


def test_values_of_the_file_win(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(
        "tls.server.certPath=/file.pem\ntls.server.authClient=TRUE\ntls.server.mode=disabled\n"
        "tls.enable=true\ntls.client.authServer=true\ntls.client.keyPassword=secret\n"
    )
    given = settings(**CERT, file=str(path))

    assert bare(server_tls(given)) == TlsSettings(
        cert_path=Path("/file.pem"), key_path=Path("/k.pem"), test_mode=False,
        need_client_auth="require",
    )  # fmt: skip
    assert bare(client_tls(given)) == TlsSettings(auth_server=True, key_password="secret")
    assert bare(client_tls_of_file(path)) == TlsSettings(
        enable=True, auth_server=True, key_password="secret"
    )


def test_a_configured_file_must_exist(tmp_path: Path) -> None:
    missing, broken = tmp_path / "missing", tmp_path / "broken"
    broken.write_text("a=\\u12")
    for path, complaint in ((missing, "No such file"), (broken, "malformed")):
        with pytest.raises(SettingsError, match=f"tls.config.file={path}: .*{complaint}"):
            server_tls(settings(file=str(path)))
        with pytest.raises(SettingsError, match=complaint):
            client_tls_of_file(path)


@pytest.mark.parametrize("key", ["tls.client.authSrver", "tsl.client.authServer"])
def test_a_mistyped_key_of_a_client_s_file_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(f"{key}=true\n")
    wanted = f"{key} is an unknown key; did you mean tls.client.authServer\\?"
    with pytest.raises(SettingsError, match=wanted):
        client_tls_of_file(path)


def test_a_mistyped_key_of_a_server_s_file_is_refused_but_others_are_ignored(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tls.properties"
    path.write_text("tls.server.authClint=true\ntls.server.certpth=/c.pem\ncolour=red\n")
    with pytest.raises(SettingsError) as caught:
        server_tls(settings(file=str(path)))
    unknown = f"tls.config.file={path}: {{}} is an unknown key; did you mean {{}}?"
    assert str(caught.value).splitlines() == [
        unknown.format("tls.server.authClint", "tls.server.authClient"),
        unknown.format("tls.server.certpth", "tls.server.certPath"),
    ]
    path.write_text("colour=red\n")
    assert server_tls(settings(file=str(path))) == TlsSettings()


@pytest.mark.parametrize("value", ["", "needed"])
def test_whether_clients_need_a_certificate_is_never_guessed(tmp_path: Path, value: str) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(f"tls.server.need.client.auth={value}\n")
    name, place = "tls.server.need.client.auth", f"in {path}:1"
    wanted = f"{name}={value} {place}: it must be none, optional, require"
    with pytest.raises(SettingsError, match=wanted):
        server_tls(settings(file=str(path)))
    with pytest.raises(SettingsError, match=f"{name}={value}: must be"):
        settings(tls__server__need__client__auth=value)


@pytest.mark.parametrize("value", ["yes", "1", "on", ""])
def test_other_words_than_true_and_false_are_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(f"tls.client.authServer={value}\n")
    wanted = f"tls.client.authServer={value} in {path}:1: it must be true or false"
    with pytest.raises(SettingsError, match=wanted):
        client_tls_of_file(path)
    with pytest.raises(SettingsError, match=wanted):
        client_tls(settings(file=str(path)))
    path.write_text(f"tls.server.authClient={value}\n")
    with pytest.raises(SettingsError, match=f"tls.server.authClient={value} in .*: it must be"):
        server_tls(settings(file=str(path)))


def test_a_file_cannot_enforce_tls_and_says_so(tmp_path: Path) -> None:
    """RocketMQ ignores the mode in this file, and would accept plain connections silently."""
    path = tmp_path / "tls.properties"
    path.write_text("tls.server.mode=enforcing\n")
    with pytest.raises(
        SettingsError, match=r"tls\.server\.mode=enforcing in .*:1 has no effect in this file"
    ):
        server_tls(settings(file=str(path)))
    given = settings(file=str(path), tls__server__mode="enforcing")
    assert bare(server_tls(given)) == TlsSettings(mode=TlsMode.ENFORCING)


def test_errors_name_a_setting_as_the_user_gave_it(tmp_path: Path) -> None:
    conf, keys = tmp_path / "broker.conf", tmp_path / "tls.properties"
    conf.write_text(f"tls.config.file={keys}\ntls.client.certPath=/no/c.pem\n")
    keys.write_text("\ntls.client.trustCertPath=/no/t.pem\n")
    loaded = load(
        Settings,
        prefix="COMETMQ_TEST",
        file=conf,
        env={"COMETMQ_TEST_TLS_SERVER_CERT_PATH": "/no/s.pem"},
        args=["--tls-server-key-password", "secret"],
    )
    server, client = (tls(loaded.value, loaded.label) for tls in (server_tls, client_tls))
    with pytest.raises(SettingsError) as caught:
        server_context(server)
    variable = "COMETMQ_TEST_TLS_SERVER_CERT_PATH"
    assert str(caught.value) == f"{variable}=/no/s.pem: No such file or directory"
    assert name_of(server, "tls.server.keyPassword") == "--tls-server-key-password"
    assert name_of(server, "tls.server.keyPath") == "tls.server.keyPath (--tls-server-key-path)"
    for changes, text in (
        ({}, f"tls.client.certPath=/no/c.pem in {conf}:2"),
        ({"auth_server": True}, f"tls.client.trustCertPath=/no/t.pem in {keys}:2"),
    ):
        with pytest.raises(SettingsError) as caught:
            client_context(msgspec.structs.replace(client, **changes))
        assert str(caught.value) == f"{text}: No such file or directory"
    keys.write_text("tls.client.authSrver=true\n")
    with pytest.raises(SettingsError) as caught:
        client_tls(loaded.value, loaded.label)
    place = f"tls.config.file={keys} in {conf}:1"
    assert str(caught.value).startswith(f"{place}: tls.client.authSrver is an unknown key; did you")
    with pytest.raises(SettingsError, match=r"--tls-config=.*: tls\.client\.authSrver is an unk"):
        client_tls_of_file(keys, "--tls-config")


def test_a_password_is_not_shown() -> None:
    given: dict[str, Any] = {"tls.server.keyPassword": "secret-1"}
    loaded = load(Settings, prefix="COMETMQ_TEST", env={}, cli=given)
    assert "secret-1" not in loaded.as_table()
    assert "secret-1" not in loaded.as_properties()
