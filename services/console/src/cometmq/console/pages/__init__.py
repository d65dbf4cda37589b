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
    dead_letter,
    dead_letters,
    definitions,
    groups,
    home,
    messages,
    push_back,
    switchover,
    topics,
    transactions,
    views,
)
from cometmq.console.web.action import Action
from cometmq.console.web.page import Page

PAGES: Final[tuple[Page, ...]] = (
    *home.PAGES,
    *brokers.PAGES,
    *broker_settings.PAGES,
    views.PAGES["topics"],
    *topics.PAGES,
    *analysis.PAGES,
    views.PAGES["groups"],
    *groups.PAGES,
    *messages.PAGES,
    views.PAGES["dead letters"],
    *dead_letters.PAGES,
    views.PAGES["transactions"],
    *transactions.PAGES,
    views.PAGES["delayed"],
    views.PAGES["delay level"],
    views.PAGES["connections"],
    *push_back.PAGES,
    *accounts.PAGES,
    *definitions.PAGES,
    *audit.PAGES,
)
ACTIONS: Final[tuple[Action, ...]] = (
    *changes.ACTIONS,
    *broker_settings.ACTIONS,
    *switchover.ACTIONS,
    *topics.ACTIONS,
    *dead_letters.ACTIONS,
    *dead_letter.ACTIONS,
    *accounts.ACTIONS,
    *definitions.ACTIONS,
)
