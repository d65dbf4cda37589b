# SPDX-License-Identifier: Apache-2.0
"""The role of a broker that neither leads nor follows."""

from cometmq.broker.copies.roles.acting import Acting
from cometmq.ha.orders import Order


class InactiveRole(Acting):
    """A broker in this role does not serve requests: it may have been replaced as
    master, or knows no master.
    """

    def __init__(self, confirmed: int = 0) -> None:
        """`confirmed` is the confirm offset that was known in the last role."""
        self._confirmed = confirmed

    def confirm_offset(self) -> int:
        return self._confirmed

    def obey(self, order: Order) -> None:
        """Ignore the order: the role for which it was accepted has just ended."""
