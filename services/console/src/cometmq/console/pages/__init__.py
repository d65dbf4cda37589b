# SPDX-License-Identifier: Apache-2.0
"""All pages in the order of the menu, and all actions."""

from typing import Final

from cometmq.console.pages import home
from cometmq.console.web.action import Action
from cometmq.console.web.page import Page

PAGES: Final[tuple[Page, ...]] = (*home.PAGES,)
ACTIONS: Final[tuple[Action, ...]] = ()
