# SPDX-License-Identifier: Apache-2.0
"""Access control on the native path: gives the lanes the accounts in native form.

The native code (`libs/accel/rust/access.rs`) takes only requests that are signed by a known account
with the necessary rights. `AccessControl.check` decides about all other requests; a test
(`services/broker/tests/lanes/test_access.py`) shows that the native code takes no request that
`check` refuses. After any change of accounts, the lanes are built anew, and have learned nothing.
"""

from typing import TYPE_CHECKING

from cometmq.broker.acl.check import AccessControl
from cometmq.broker.broker import Broker
from cometmq.broker.native import accel
from cometmq.runtime.acl.accounts import DENIED_BY_DEFAULT, Account, Accounts

if TYPE_CHECKING:
    from cometmq.accel import LaneAccounts


def reason_against(control: AccessControl) -> str | None:
    """Return why the native code cannot check requests; None if it can."""
    if control.rules.is_rocketmq_4:
        return "aclRocketmq4Rights=true"
    if control.rules.signed_age_ms_max:
        return "aclSignedAgeMax is set"
    return None


class LaneAccess:
    """The broker's current accounts, converted once for both lanes."""

    def __init__(self, broker: Broker) -> None:
        self.control = None if broker.admission.acl is None else broker.admission.acl.control
        self._converted: Accounts | None = None
        self._native: LaneAccounts | None = None

    @property
    def accounts(self) -> Accounts | None:
        """The current accounts, a new object after each change; None without access control."""
        return None if self.control is None else self.control.accounts

    def native(self) -> "LaneAccounts | None":
        """Return the current accounts for the native code; None without access control."""
        control = self.control
        if control is None:
            return None
        if self._native is None or self._converted is not control.accounts:
            self._native = native_accounts(control)
            self._converted = control.accounts
        return self._native


def native_accounts(control: AccessControl) -> "LaneAccounts":
    """Return all accounts for the native code."""
    return accel.LaneAccounts([_row(account) for account in control.known().values()])


def _row(account: Account) -> tuple[bytes, bytes, bool, tuple[int, int], dict[bytes, int]]:
    rights = {**DENIED_BY_DEFAULT, **account.rights}
    return (
        _bytes(account.access_key),
        _bytes(account.config.secret_key or ""),
        account.is_admin and not account.rights,
        (account.topic_right, account.group_right),
        {_bytes(name): right for name, right in rights.items()},
    )


def _bytes(text: str) -> bytes:
    # A name in a file may contain lone surrogates; no request that native code takes contains them.
    return text.encode("utf-8", "surrogatepass")
