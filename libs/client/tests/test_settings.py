# SPDX-License-Identifier: Apache-2.0
"""Options of clients: bounds, precedence and addresses of name servers."""

import re
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
    sync,
)
from cometmq.client.cluster.namesrv import parse_addresses
from cometmq.client.option_checks import checked


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


def test_codes_to_retry_are_numbers() -> None:
    codes: Any = frozenset(["1"])
    with pytest.raises(InvalidArgument, match=r"retry_codes=.*: it must be a whole number, not"):
        checked(ProducerOptions(retry_codes=codes))
