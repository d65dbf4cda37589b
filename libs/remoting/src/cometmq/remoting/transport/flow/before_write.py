# SPDX-License-Identifier: Apache-2.0
"""Makes changes durable before a server writes the answers that acknowledge them."""

from collections.abc import Callable


class BeforeWrite:
    """Two functions to call before a server writes answers: one before each write, one once per
    turn.
    """

    def __init__(
        self, check: Callable[[], None] | None = None, save: Callable[[], None] | None = None
    ) -> None:
        """Call `check` before each write, and `save` once, before the first write after
        `gather`.
        """
        self.check = check
        self._save = save
        self.is_gathering = False
        """Whether answers wait for the end of the turn of the loop, and then for `save`."""
        self.is_needed = check is not None
        """Whether answers must not be written without a call to `run`."""

    def gather(self) -> None:
        """Hold all answers until the end of this turn of the loop, when `save` is called."""
        self.is_gathering = self.is_needed = True

    def run(self) -> None:
        """Make the changes durable that the next answers acknowledge."""
        if self.is_gathering:
            self.is_gathering, self.is_needed = False, self.check is not None
            if self._save is not None:
                self._save()
        if self.check is not None:
            self.check()
