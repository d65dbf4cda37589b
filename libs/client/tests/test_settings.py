# SPDX-License-Identifier: Apache-2.0
"""Client options: bounds, precedence, and the addresses of name servers."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from cometmq import client
from cometmq.client import (
    ClientOptions,
    InvalidArgument,
    LitePullOptions,
    NoNamesrv,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    SessionCredentials,
    TlsSettings,
    sync,
)
from cometmq.client.option_checks import checked, parse_addresses
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.remoting.transport.settings import TlsMode
from cometmq.testing.client.listening import logged

KEYS: Any = SessionCredentials
TLS: Any = TlsSettings
NOT_FOR_USERS = {"BrokerAdmin", "CheckTransactionState", "MessageRecord"}
"""Types of arguments that users get from the client, or that the client passes to itself."""


def test_a_name_server_is_an_argument_or_an_option() -> None:
    assert checked(ProducerOptions(), "b:2").namesrv == "b:2"
    assert checked(ProducerOptions(namesrv="a:1")).namesrv == "a:1"


@pytest.mark.parametrize("kind", [Producer, sync.Producer])
def test_different_name_servers_are_refused_with_both(kind: type[Any]) -> None:
    text = "the argument namesrv is 'b:2', but the option namesrv is 'a:1': give only one of them"
    with pytest.raises(InvalidArgument, match=text):
        kind("pg", "b:2", options=ProducerOptions(namesrv="a:1"))


def test_a_pull_is_awaited_longer_than_it_is_held() -> None:
    with pytest.raises(InvalidArgument, match="must be longer than suspend_ms"):
        PushOptions(pull_timeout_ms=10_000)


def test_name_servers_are_separated_by_semicolons() -> None:
    assert parse_addresses(" a:1; http://b:2 ;") == ["a:1", "b:2"]
    assert parse_addresses("a;[::1];[::1]:2") == ["a:9876", "[::1]:9876", "[::1]:2"]
    assert parse_addresses("::1;::1:2") == ["[::1]:9876", "::1:2"]
    with pytest.raises(NoNamesrv):
        parse_addresses("")


@pytest.mark.parametrize(
    "text",
    ["https://localhost", "a:1;http://b:2/nsaddr?x=1", "local host:9876", "a:1,b:2", "[::1:9876"],
)
@pytest.mark.parametrize("kind", [Producer, sync.Producer])
def test_a_url_is_no_name_server_address(kind: type[Any], text: str) -> None:
    for given in ({"namesrv": text}, {"options": ProducerOptions(namesrv=text)}):
        with pytest.raises(InvalidArgument, match=r"not a name server address: .*write host:port"):
            kind("pg", **given)


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
            ProducerOptions,
            {"timeout": 1},
            "no option timeout; similar ones are api_timeout_ms and send_timeout_ms",
        ),
        (
            ClientOptions,
            {"zzz": 1},
            "ClientOptions has no option zzz: help(ClientOptions) lists its options",
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
    with pytest.raises(InvalidArgument, match=r"by name, as PushOptions\(\*\*options\)"):
        PushOptions(wrong)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match=r"must be PushOptions\(...\), not dict"):
        PushConsumer("cg", "a:1", listener=print, options=wrong)


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (PushOptions, {"concurrency": "3"}, "concurrency"),
        (PushOptions, {"concurrency": 0}, "concurrency"),
        (PushOptions, {"concurrency": 1001}, "concurrency"),
        (PushOptions, {"pull_count_max": 1025}, "pull_count_max"),
        (PushOptions, {"orderly": 1}, "orderly"),
        (PushOptions, {"consume_timestamp_ms": 1_700_000_000}, "consume_timestamp_ms"),
        (PushOptions, {"consume_from": "FIRST"}, "consume_from"),
        (PushOptions, {"pull_timeout_ms": "60000"}, "pull_timeout_ms"),
        (LitePullOptions, {"auto_commit_interval_ms": 10}, "auto_commit_interval_ms"),
        (ClientOptions, {"client_ip": 5}, "client_ip"),
        (ClientOptions, {"heartbeat_interval_ms": 0}, "heartbeat_interval_ms"),
        (ClientOptions, {"api_timeout_ms": 2.5}, "api_timeout_ms"),
        (ClientOptions, {"credentials": ("key", "secret")}, "credentials"),
        (ClientOptions, {"credentials": KEYS(None, None)}, "credentials.access_key"),
        (
            ClientOptions,
            {"credentials": KEYS("u", b"secret")},
            "credentials.secret_key",
        ),
        (ClientOptions, {"tls": True}, "tls"),
        (ClientOptions, {"tls": TLS(trust_cert_path=b"ca.pem")}, "tls.trust_cert_path"),
        (ClientOptions, {"tls": TLS(key_password=b"secret")}, "tls.key_password"),
        (ClientOptions, {"tls": TLS(enable="true")}, "tls.enable"),
        (ProducerOptions, {"retry_codes": frozenset(["1"])}, "retry_codes"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_the_option(
    kind: type[Any], options: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^invalid option {re.escape(name)}\\b") as caught:
        checked(kind(**options))
    assert "secret" not in str(caught.value).replace(name, "")


FILES = {
    "empty.pem": "",
    "cert.pem": self_signed_pem("own"),
    "other.pem": self_signed_pem("other"),
}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"auth_server": True, "trust_cert_path": "missing.pem"},
            "tls.trust_cert_path={}/missing.pem: No such file",
        ),
        (
            {"auth_server": True, "trust_cert_path": "empty.pem"},
            "tls.trust_cert_path={}/empty.pem: no certificates in PEM",
        ),
        (
            {"cert_path": "missing.pem"},
            "tls.cert_path={}/missing.pem: No such file",
        ),
        ({"cert_path": "."}, "tls.cert_path={}: Is a directory"),
        (
            {"cert_path": "cert.pem", "key_path": "other.pem"},
            "/cert.pem and tls.key_path={}/other.pem do not match",
        ),
        (
            {"cert_path": "cert.pem", "key_path": "empty.pem"},
            "tls.key_path={}/empty.pem: no certificate and key in PEM form",
        ),
    ],
)
async def test_unusable_tls_files_are_named_with_their_options(
    tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    given: dict[str, Any] = {
        name: tmp_path / value if isinstance(value, str) else value
        for name, value in fields.items()
    }
    tls = TlsSettings(enable=True, **given)
    producer = Producer("pg", "127.0.0.1:1", options=ProducerOptions(tls=tls))
    for _ in range(2):  # the next start may find them corrected
        with pytest.raises(InvalidArgument) as caught:
            await producer.start()
        assert text.replace("{}", str(tmp_path)) in str(caught.value)
        assert str(caught.value).startswith("invalid option tls.")


@pytest.mark.parametrize(
    "fields",
    [
        {"cert_path": "cert.pem"},
        {"key_path": "key.pem"},
        {"key_password": "secret"},
        {"trust_cert_path": "ca.pem"},
        {"auth_server": True},
        {"mode": TlsMode.ENFORCING},
        {"need_client_auth": "require"},
    ],
)
def test_tls_settings_without_tls_are_refused(fields: dict[str, Any]) -> None:
    (name,) = fields
    text = rf"option tls\.{name}: it has no effect while TLS is off; add enable=True"
    with pytest.raises(InvalidArgument, match=text) as caught:
        Producer("pg", "a:1", options=ProducerOptions(tls=TlsSettings(**fields)))
    assert "secret" not in str(caught.value)
    assert checked(ProducerOptions(tls=TlsSettings(enable=True, **fields))).tls.enable


@pytest.mark.parametrize("address", ["localhost", "10.0.0.1:80", "10.0.0", " "])
@pytest.mark.parametrize("options", [ClientOptions, ProducerOptions, LitePullOptions])
def test_an_address_that_is_none_is_refused(options: Any, address: str) -> None:
    text = f"invalid option client_ip='{address}': it must be an IP address such as '10.0.0.1'"
    with pytest.raises(InvalidArgument, match=text):
        checked(options(client_ip=address))
    assert checked(options(client_ip="fe80::1")).client_ip == "fe80::1"


@pytest.mark.parametrize("topic", ["my topic", "", "t" * 128])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("trace_topic", ProducerOptions),
        ("trace_topic", PushOptions),
        ("default_topic", ProducerOptions),
    ],
)
def test_topics_in_options_are_checked_when_a_client_is_made(
    name: str, kind: Any, topic: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^invalid option {name}='.*': the name"):
        checked(kind(**{name: topic}))


def public_hints() -> Iterator[tuple[str, object]]:
    """Yield the types of options, and of the parameters of public methods."""
    for name in client.__all__:
        kind = getattr(client, name)
        if not isinstance(kind, type):
            continue
        if issubclass(kind, ClientOptions):
            yield from get_type_hints(kind).items()
        for _, method in inspect.getmembers(kind, inspect.isfunction):
            if not method.__name__.startswith("_"):
                hints = get_type_hints(method)
                yield from ((name, hint) for name, hint in hints.items() if name != "return")


def types_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type):
        yield hint
    for inner in hint if isinstance(hint, list) else get_args(hint):
        yield from types_in(inner)


def test_the_types_of_options_and_arguments_can_be_imported() -> None:
    found = {kind for _, hint in public_hints() for kind in types_in(hint)}
    own = {kind.__name__ for kind in found if kind.__module__.startswith("cometmq.")}
    assert {"CompressionType", "Serialization", "TopicConfig"} <= own
    assert own - set(client.__all__) == NOT_FOR_USERS


@pytest.mark.parametrize(
    ("tls", "count"),
    [
        ({"enable": True, "trust_cert_path": Path("ca.pem")}, 1),
        ({"enable": True}, 0),
    ],
)
async def test_unused_trusted_certificates_are_reported(
    caplog: pytest.LogCaptureFixture, tls: dict[str, Any], count: int
) -> None:
    options = ProducerOptions(tls=TlsSettings(**tls))
    async with Producer("pg", "127.0.0.1:1", options=options):
        pass
    warnings = logged(caplog, "tls.unverified")
    assert len(warnings) == count
    assert all("trust_cert_path=ca.pem " in text for text in warnings)
    assert all("set auth_server=True" in text for text in warnings)
