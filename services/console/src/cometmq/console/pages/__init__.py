# SPDX-License-Identifier: Apache-2.0
"""All pages in the order of the menu, and all actions."""

from typing import Final

from cometmq.console.pages import (
    accounts,
    audit,
    brokers,
    connections,
    dead_letters,
    delayed,
    group_changes,
    groups,
    home,
    messages,
    push_back,
    sending,
    switchover,
    topic_changes,
    topics,
    transactions,
)
from cometmq.console.web.action import Action
from cometmq.console.web.page import Page

PAGES: Final[tuple[Page, ...]] = (
    *home.PAGES,
    *brokers.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *transactions.PAGES,
    *delayed.PAGES,
    *connections.PAGES,
    *push_back.PAGES,
    *accounts.PAGES,
    *audit.PAGES,
)
ACTIONS: Final[tuple[Action, ...]] = (
    *brokers.ACTIONS,
    *switchover.ACTIONS,
    *topic_changes.ACTIONS,
    *sending.ACTIONS,
    *group_changes.ACTIONS,
    *dead_letters.ACTIONS,
    *connections.ACTIONS,
    *transactions.ACTIONS,
    *accounts.ACTIONS,
)
