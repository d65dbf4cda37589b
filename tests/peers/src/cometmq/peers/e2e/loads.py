# SPDX-License-Identifier: Apache-2.0
"""Runs our client's load and, if there is a pod for the Java client, that client's load too."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cometmq.peers.e2e import java
from cometmq.peers.e2e.java import JavaLoad
from cometmq.peers.e2e.kubectl import Namespace
from cometmq.peers.e2e.load import PodLoad
from cometmq.peers.e2e.load import running as running_pod
from cometmq.peers.ha.ledger import Outage


class Loads:
    """Both loads; all times are read from the clock of the node that runs our client's pod."""

    def __init__(self, ours: PodLoad, beside: JavaLoad | None) -> None:
        self._ours, self._java = ours, beside
        self._java_times: dict[float, float] = {}
        """For each time returned, the time on the clock of the Java client's node."""
        self.java_outages: list[Outage] = []
        self.java_standstills: list[float] = []
        """For each outage, how long a Java consumer stood still."""
        self.result: dict[str, Any] = {}
        """The totals of both loads, once they have finished."""

    def now(self) -> float:
        moment = self._ours.now()
        if self._java is not None:
            self._java_times[moment] = self._java.now()
        return moment

    def settle(self) -> float:
        """Wait until all sends so far have an outcome; return the time.

        The Java client's senders must also have been acknowledged again, and its consumers must
        have caught up: they may keep using the address of a lost master until they look up the
        route again, up to 30 s later.
        """
        if self._java is None:
            return self._ours.settle()
        self._java.settle()
        moment = self._ours.settle()
        self._java_times[moment] = self._java.now()
        return moment

    def again(self, since: float) -> float:
        """Wait until a send of our client that began after `since` is acknowledged."""
        return self._ours.again(since)

    def outage(self, since: float, until: float) -> Outage:
        """Return the outage of our senders; its failed sends include the Java client's.

        Both times must be results of `now` or `settle`.
        """
        found = self._ours.outage(since, until)
        if self._java is None:
            return found
        times = self._java_times[since], self._java_times[until]
        beside = self._java.outage(*times)
        self.java_outages.append(beside)
        self.java_standstills.append(self._java.standstill(*times))
        return found._replace(failed_count=found.failed_count + beside.failed_count)

    def finish(self) -> None:
        """Stop sending, wait for the consumers, and fill in `result`."""
        self._ours.finish()
        self.result = dict(self._ours.result)
        if self._java is None:
            return
        self._java.finish()
        for key, found in self._java.result.items():
            if isinstance(found, list):
                self.result[key] = [*self.result[key], *(f"Java client: {one}" for one in found)]
            else:
                self.result[key] += found


@contextmanager
def running(namespace: Namespace, namesrv: str, *, with_java: bool) -> Iterator[Loads]:
    """Run the loads, and finish them on leaving the context unless one has failed."""
    with ExitStack() as stack:
        ours = stack.enter_context(running_pod(namespace, namesrv))
        beside = stack.enter_context(java.running(namespace, namesrv)) if with_java else None
        loads = Loads(ours, beside)
        yield loads
        if not loads.result:
            loads.finish()
