# SPDX-License-Identifier: Apache-2.0
"""A broker's settings with their defaults and sources; RocketMQ's brokers send only the values."""

import msgspec


class BrokerSetting(msgspec.Struct, gc=False, rename="camel"):
    """One setting of a running broker."""

    name: str
    value: str | None = None
    """None if it is unset; a secret is masked."""
    default: str | None = None
    """None if it is unset by default, or is no setting of the broker."""
    source: str = ""
    """Where the value is set, such as `file broker.conf:3`."""


class BrokerSettingsList(msgspec.Struct, gc=False, rename="camel"):
    """Body of the answer to GET_BROKER_SETTINGS."""

    settings: list[BrokerSetting] = []
