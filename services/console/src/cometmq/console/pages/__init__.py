# SPDX-License-Identifier: Apache-2.0
"""All pages in the order of the menu, and all actions."""

from typing import Final

from cometmq.console.pages import (
    connections,
    dead_letters,
    delayed,
    home,
    messages,
    push_back,
    transactions,
)
from cometmq.console.web.action import Action
from cometmq.console.web.page import Page

PAGES: Final[tuple[Page, ...]] = (
    *home.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *transactions.PAGES,
    *delayed.PAGES,
    *connections.PAGES,
    *push_back.PAGES,
)
ACTIONS: Final[tuple[Action, ...]] = (*dead_letters.ACTIONS, *transactions.ACTIONS)
