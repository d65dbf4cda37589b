# SPDX-License-Identifier: Apache-2.0
"""Reads metrics of the API server and of the operator through the API server."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from cometmq.peers.e2e.kubectl import Namespace, run

WRITES: Final = frozenset({"APPLY", "DELETE", "DELETECOLLECTION", "PATCH", "POST", "PUT"})
"""The verbs of requests that change something; an exec is a CONNECT."""
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text: str, family: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and the value of each sample of a family."""
    for line in text.splitlines():
        if line.startswith((f"{family}{{", f"{family} ")):
            labels, _, value = line.rpartition(" ")
            yield dict(_LABEL.findall(labels)), float(value)


def api_writes(text: str) -> Counter[str]:
    """Return the writes in an API server's metrics, by verb and resource."""
    found: Counter[str] = Counter()
    for labels, value in samples(text, "apiserver_request_total"):
        if labels["verb"] in WRITES:
            found[f"{labels['verb']} {labels['resource']}"] += int(value)
    return found


class OperatorMetrics:
    """The metrics of one operator at one moment."""

    def __init__(self, namespace: Namespace, pod: str) -> None:
        path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}:8080/proxy/metrics"
        self._text = run("kubectl", "get", "--raw", path)

    @property
    def writes(self) -> int:
        """Writes since the start, including those of the operators' Lease, but not the records that
        elections write.
        """
        found = samples(self._text, "cometmq_operator_api_requests_total")
        return int(sum(value for labels, value in found if labels["method"] in WRITES))

    @property
    def elections(self) -> int:
        return int(self._sum("cometmq_elector_elections_total"))

    @property
    def cpu_s(self) -> float:
        return self._sum("process_cpu_seconds_total")

    def _sum(self, family: str) -> float:
        return sum(value for _, value in samples(self._text, family))
