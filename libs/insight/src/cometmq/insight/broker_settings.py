# SPDX-License-Identifier: Apache-2.0
"""Settings of running brokers: value, default, source, and where brokers differ."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.remoting.errors import RequestCodeNotSupported
from cometmq.runtime.redaction import redacted_setting

OWN_BY_NATURE: Final = frozenset(
    {"brokerName", "brokerId", "brokerIP1", "brokerIP2", "advertisedAddresses", "bindAddress",
     "listenPort", "haListenPort", "storePathRootDir", "storePathCommitLog", "adminHttpPort",
     "brokerRole", "haMasterAddress", "controlPort", "controlBindAddress", "groupAddress"}
)  # fmt: skip
"""Settings whose values normally differ between brokers."""
UNSET: Final = "(unset)"


class Setting(msgspec.Struct, frozen=True, gc=False):
    """One setting of one broker."""

    name: str
    value: str | None
    """None if it is unset; a secret is masked."""
    default: str | None = None
    source: str | None = None
    """Where the value is set; None if the broker does not report it, as RocketMQ's never do."""

    @property
    def shown(self) -> str:
        """Return the value for a table."""
        return UNSET if self.value is None else self.value

    @property
    def is_changed(self) -> bool | None:
        """Return whether the value differs from the default; None if the default is unknown."""
        return None if self.source is None else self.value != self.default


class Difference(msgspec.Struct, frozen=True, gc=False):
    """A setting whose value is not the same everywhere."""

    name: str
    settings: Mapping[str, Setting]
    """By broker; a broker that does not have the setting is missing."""


async def settings_of(broker: BrokerAdmin) -> list[Setting]:
    """Ask a broker for its settings, sorted by name; raise CometError if it does not answer."""
    try:
        rows = await broker.settings()
    except RequestCodeNotSupported:
        config = await broker.config()
        found = [Setting(name, redacted_setting(name, it)) for name, it in config.items()]
    else:
        found = [Setting(it.name, it.value, it.default, it.source) for it in rows]
    return sorted(found, key=lambda it: it.name)


def differences(brokers: Mapping[str, Iterable[Setting]]) -> list[Difference]:
    """Return the settings that at least two brokers have with different values, by name.

    Settings in OWN_BY_NATURE are left out. Brokers without a setting do not count as different,
    because RocketMQ, CometMQ and their versions have different settings.
    """
    by_name: dict[str, dict[str, Setting]] = {}
    for broker, settings in brokers.items():
        for it in settings:
            by_name.setdefault(it.name, {})[broker] = it
    return [
        Difference(name, found)
        for name, found in sorted(by_name.items())
        if name not in OWN_BY_NATURE and len({it.value for it in found.values()}) > 1
    ]
