# SPDX-License-Identifier: Apache-2.0
"""Options of clients: bounds, precedence and addresses of name servers."""

import pytest

from cometmq.client import ClientOptions, InvalidArgument, NoNamesrv, ProducerOptions
from cometmq.client.cluster.namesrv import parse_addresses
from cometmq.client.settings import LitePullOptions, PushOptions, checked


def test_a_name_server_given_beside_the_options_wins() -> None:
    assert checked(ProducerOptions(namesrv="a:1"), "b:2").namesrv == "b:2"
    assert checked(ProducerOptions(namesrv="a:1")).namesrv == "a:1"


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
