# SPDX-License-Identifier: Apache-2.0
"""All pages in the order of the menu, and all actions."""

from typing import Final

from cometmq.console.pages import (
    accounts,
    analysis,
    audit,
    broker_settings,
    brokers,
    changes,
    connections,
    dead_letter,
    dead_letters,
    definitions,
    delayed,
    groups,
    home,
    messages,
    push_back,
    replaying,
    sending,
    switchover,
    topics,
    transactions,
)
from cometmq.console.web.action import Action
from cometmq.console.web.page import Page

PAGES: Final[tuple[Page, ...]] = (
    *home.PAGES,
    *brokers.PAGES,
    *broker_settings.PAGES,
    *topics.PAGES,
    *analysis.PAGES,
    *groups.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *replaying.PAGES,
    *transactions.PAGES,
    *delayed.PAGES,
    *connections.PAGES,
    *push_back.PAGES,
    *accounts.PAGES,
    *definitions.PAGES,
    *audit.PAGES,
)
ACTIONS: Final[tuple[Action, ...]] = (
    *changes.ACTIONS,
    *broker_settings.ACTIONS,
    *switchover.ACTIONS,
    *sending.ACTIONS,
    *dead_letters.ACTIONS,
    *dead_letter.ACTIONS,
    *replaying.ACTIONS,
    *accounts.ACTIONS,
    *definitions.ACTIONS,
)
