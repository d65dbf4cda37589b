# SPDX-License-Identifier: Apache-2.0
"""One order of each kind, so that tests also cover kinds that are added later."""

from cometmq.control.methods import fields
from cometmq.ha.orders import ORDERS, Order


def each_order() -> tuple[Order, ...]:
    """Return one order of each kind; no two fields of one have the same value."""
    return tuple(
        kind(*[type_ == "bool" or value for value, type_ in enumerate(fields(kind).values(), 5)])
        for kind in ORDERS.values()
    )
