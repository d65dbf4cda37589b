# SPDX-License-Identifier: Apache-2.0
"""Options of clients: bounds, precedence and addresses of name servers."""

import re
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import (
    ClientOptions,
    InvalidArgument,
    LitePullOptions,
    NoNamesrv,
    Producer,
    ProducerOptions,
    PullOptions,
    PushConsumer,
    PushOptions,
    SessionCredentials,
    TlsSettings,
    sync,
)
from cometmq.client.cluster.namesrv import parse_addresses
from cometmq.client.option_checks import checked
from cometmq.remoting.errors import SettingsError


def test_a_name_server_is_an_argument_or_an_option() -> None:
    assert checked(ProducerOptions(), "b:2").namesrv == "b:2"
    assert checked(ProducerOptions(namesrv="a:1")).namesrv == "a:1"


def test_the_same_name_servers_may_be_given_twice() -> None:
    assert checked(ProducerOptions(namesrv="a:1;http://b:2"), "b:2; a:1").namesrv == "b:2; a:1"


@pytest.mark.parametrize("kind", [Producer, sync.Producer])
def test_different_name_servers_are_refused_with_both(kind: type[Any]) -> None:
    text = "the argument namesrv is 'b:2', but the option namesrv is 'a:1': give only one of them"
    with pytest.raises(InvalidArgument, match=text):
        kind("pg", "b:2", options=ProducerOptions(namesrv="a:1"))


@pytest.mark.parametrize(
    "options",
    [
        PushOptions(concurrency=0),
        PushOptions(pull_count_max=1025),
        LitePullOptions(auto_commit_interval_ms=10),
        ClientOptions(heartbeat_interval_ms=0),
    ],
)
def test_options_have_bounds(options: ClientOptions) -> None:
    with pytest.raises(InvalidArgument, match="invalid option"):
        checked(options)


def test_a_pull_is_awaited_longer_than_it_is_held() -> None:
    with pytest.raises(InvalidArgument, match="must be longer than suspend_ms"):
        PushOptions(pull_timeout_ms=10_000)


def test_name_servers_are_separated_by_semicolons() -> None:
    assert parse_addresses(" a:1; http://b:2 ;") == ["a:1", "b:2"]
    with pytest.raises(NoNamesrv):
        parse_addresses("")


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (
            PushOptions,
            {"concurrencyy": 1},
            "PushOptions has no option concurrencyy; did you mean concurrency?",
        ),
        (
            ProducerOptions,
            {"sendTimeoutMs": 1},
            "has no option sendTimeoutMs; did you mean send_timeout_ms?",
        ),
        (PushOptions, {"consumeThreadMax": 1}, "RocketMQ's consumeThreadMax is concurrency here"),
        (
            PullOptions,
            {"retry_times": 1},
            "no option retry_times: it is an option of ProducerOptions and TransactionOptions",
        ),
        (
            ClientOptions,
            {"zzz": 1},
            "ClientOptions has no option zzz: its options are access_channel, api_timeout_ms, ",
        ),
    ],
)
def test_an_unknown_option_names_the_one_that_was_meant(
    kind: type[Any], fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        kind(**fields)


def test_options_are_given_by_name() -> None:
    wrong: Any = {"concurrency": 1}
    with pytest.raises(InvalidArgument, match=r"those in a dict as PushOptions\(\*\*options\)"):
        PushOptions(wrong)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match=r"did you mean PushOptions\(\*\*options\)\?"):
        PushConsumer("cg", "a:1", listener=print, options=wrong)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": "3"}, "concurrency='3': it must be a whole number, not str"),
        ({"concurrency": 1001}, "concurrency=1001: it must be a whole number of at most 1000"),
        ({"orderly": 1}, "orderly=1: it must be True or False, not int"),
        ({"client_ip": 5}, "client_ip=5: it must be a string, not int"),
        ({"pull_timeout_ms": "60000"}, "pull_timeout_ms='60000': it must be a whole number, not"),
    ],
)
def test_a_wrong_value_is_named_in_words(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^invalid option {text}"):
        checked(PushOptions(**options))


@pytest.mark.parametrize("kind", [Producer, sync.Producer])
@pytest.mark.parametrize(
    ("option", "text"),
    [
        (
            {"credentials": SessionCredentials(None, None)},  # type: ignore[arg-type]
            "credentials.access_key: it must be a string, not None",
        ),
        (
            {"credentials": SessionCredentials("user", b"secret")},  # type: ignore[arg-type]
            "credentials.secret_key: it must be a string, not bytes",
        ),
        (
            {"tls": TlsSettings(trust_cert_path=b"ca.pem")},  # type: ignore[arg-type]
            "tls.trust_cert_path: it must be a Path or a string, not bytes",
        ),
        (
            {"tls": TlsSettings(key_password=b"secret")},  # type: ignore[arg-type]
            "tls.key_password: it must be a string or None, not bytes",
        ),
        (
            {"tls": TlsSettings(enable="true")},  # type: ignore[arg-type]
            "tls.enable: it must be True or False, not str",
        ),
    ],
)
def test_wrong_keys_and_tls_settings_are_named(
    kind: type[Any], option: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^invalid option {re.escape(text)}$"):
        kind("pg", "a:1", options=ProducerOptions(**option))


def test_tls_paths_may_be_strings() -> None:
    as_strings: Any = {"cert_path": "cert.pem", "key_path": "key.pem", "trust_cert_path": "ca.pem"}
    as_paths: Any = {name: Path(path) for name, path in as_strings.items()}
    assert TlsSettings(**as_strings) == TlsSettings(**as_paths)
    assert checked(ProducerOptions(tls=TlsSettings(**as_strings))).tls == TlsSettings(**as_paths)


async def test_a_missing_trust_file_given_as_a_string_is_named() -> None:
    path: Any = "/missing/ca.pem"
    tls = TlsSettings(enable=True, auth_server=True, trust_cert_path=path)
    producer = Producer("pg", "127.0.0.1:1", options=ProducerOptions(tls=tls))
    with pytest.raises(SettingsError, match=r"trustCertPath=/missing/ca\.pem: No such"):
        await producer.start()


@pytest.mark.parametrize(
    ("tls", "count"),
    [
        ({"enable": True, "trust_cert_path": Path("ca.pem")}, 1),
        ({"enable": True}, 0),
        ({"trust_cert_path": Path("ca.pem")}, 0),
    ],
)
async def test_unused_trusted_certificates_are_reported(
    caplog: pytest.LogCaptureFixture, tls: dict[str, Any], count: int
) -> None:
    options = ProducerOptions(tls=TlsSettings(**tls))
    async with Producer("pg", "127.0.0.1:1", options=options):
        pass
    found = [record.getMessage() for record in caplog.records]
    warnings = [text for text in found if text.startswith("tls.unverified trust_cert_path=ca.pem ")]
    assert len(warnings) == count
    assert all("set auth_server=True" in text for text in warnings)


def test_codes_to_retry_are_numbers() -> None:
    codes: Any = frozenset(["1"])
    with pytest.raises(InvalidArgument, match=r"retry_codes=.*: it must be a whole number, not"):
        checked(ProducerOptions(retry_codes=codes))
