# SPDX-License-Identifier: Apache-2.0
"""The log of a consumer that ends `cometmq consume` when a broker denies access."""

import asyncio
from collections.abc import Mapping

from cometmq.cli.complaints import Complaints
from cometmq.cli.consuming.source import Faults
from cometmq.client.errors import ClientError
from cometmq.remoting.errors import AccessDenied


class EndingComplaints(Complaints):
    """Remembers failing pulls, and ends the command if a broker denies one, because retrying would
    not help.
    """

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults
        self._refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def warning(self, event: str, /, **facts: object) -> None:
        """Print the event, unless it is a refusal, which becomes the command's error."""
        text = self.refusal(facts)
        if text is None:
            self._faults.note(facts)
            super().warning(event, **facts)
        elif not self._refusal.done():
            self._refusal.set_result(text)

    def refusal(self, facts: Mapping[str, object]) -> str | None:
        """Return the text of the refusal that an event reports; None if it reports none."""
        kind, _, text = str(facts.get("error", "")).partition(": ")
        return text if kind == AccessDenied.__name__ else None

    async def fail_if_refused(self) -> None:
        """Wait for a refusal and raise it."""
        raise ClientError(await self._refusal)
