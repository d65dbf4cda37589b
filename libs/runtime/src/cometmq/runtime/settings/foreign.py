# SPDX-License-Identifier: Apache-2.0
"""Keys of RocketMQ that are no settings here: without effect, or refused if they ask for something.

A key that restricts what peers may do, names the leader, or keeps data where this program does not
look must never be skipped: its operator would believe that it holds. Such a key ends the start.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from cometmq.remoting.errors import SettingsError
from cometmq.runtime.redaction import HIDDEN, looks_secret


class Refusal(NamedTuple):
    """What a key asks for, and what its user can do instead."""

    accepted: frozenset[str]
    """The values, in lower case, that ask for nothing; a key without a value does not, either."""
    what: str
    way_out: str

    def asks(self, raw: object) -> bool:
        """Return whether a value asks for it."""
        return (text := str(raw).strip().lower()) != "" and text not in self.accepted

    def line(self, name: str, raw: object) -> str:
        """Return the fault of a key with this value, without the place of the value."""
        shown = HIDDEN if looks_secret(name) else str(raw).strip()
        return f"{name}={shown}: {self.what}; {self.way_out}"


class Foreign(msgspec.Struct, frozen=True):
    """The keys of one program, by name; the default has none."""

    harmless: Mapping[str, str] = {}
    """The keys without effect, each with the reason."""
    refused: Mapping[str, Refusal] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.harmless or name in self.refused

    def check(self, name: str, raw: object, place: object = "") -> None:
        """Raise SettingsError if a key asks for what is refused."""
        refusal = self.refused.get(name)
        if refusal is not None and refusal.asks(raw):
            source = f" (from {place})" if place else ""
            raise SettingsError(refusal.line(name, raw) + source)


def foreign_of(settings_type: type) -> Foreign:
    """Return the table of a settings struct: its class variable FOREIGN."""
    found: Foreign = getattr(settings_type, "FOREIGN", _NONE)
    return found


def refusals(
    names: Iterable[str], what: str, way_out: str, *, accepted: Iterable[str] = ("false",)
) -> dict[str, Refusal]:
    """Return the refusals of keys that share reason and remedy."""
    return dict.fromkeys(names, Refusal(frozenset(accepted), what, way_out))


def because(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return reasons by key, from words of keys by reason."""
    return {name: reason for reason, names in reasons.items() for name in names.split()}


ACCESS_CONTROL: Final = refusals(
    ("authenticationEnabled", "authorizationEnabled"),
    "access control of RocketMQ 5 is not served, and without it everybody may do everything",
    "use RocketMQ 4.9's (aclEnable=true and accounts in plain_acl.yml), or set it to false",
)
"""Name servers of RocketMQ 5 skip these keys; here they mean the same in every file."""
_NONE: Final = Foreign()
