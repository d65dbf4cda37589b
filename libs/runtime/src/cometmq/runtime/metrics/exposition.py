# SPDX-License-Identifier: Apache-2.0
"""The formats of /metrics are prometheus_client's; this chooses the one that a scraper asks for.

`choose_encoder` of prometheus_client 0.26 takes the first media type whatever its q value, and
writes versions that it does not know. So it is asked about the best of those that it knows.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cometmq.runtime.metrics import PART_ROWS

Encoder = Callable[[Collector], bytes]

_VERSIONS: Final = {
    "application/openmetrics-text": {"", "1.0.0"},
    "text/plain": {"", "0.0.4", "1.0.0"},
    "text/*": {""},
    "*/*": {""},
}


def encoder_of(accept: str) -> tuple[Encoder, str]:
    """Return the encoder and the content type for a header `Accept`: those with the highest q
    value, the first ones among equals; text 0.0.4 if none is known.
    """
    found, found_q = "", 0.0
    for part in accept.lower().replace('"', "").split(","):
        name, *parameters = (it.strip() for it in part.split(";"))
        given = {
            key.strip(): value.strip() for key, _, value in (it.partition("=") for it in parameters)
        }
        try:
            q = float(given.pop("q", "1"))
        except ValueError:
            continue
        if q > found_q and given.get("version", "") in _VERSIONS.get(name, ()):
            found, found_q = ";".join([name, *(f"{key}={it}" for key, it in given.items())]), q
    return choose_encoder(found)


class Dropping(Collector):
    """Gives families to an encoder once, and frees the samples of each before the next.

    Freeing all samples of a large broker at once would hold the interpreter lock for 10 ms.
    """

    def __init__(self, families: list[Metric]) -> None:
        """`families` is emptied."""
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the families in their order."""
        self._families.reverse()
        while self._families:
            family = self._families.pop()
            yield family
            samples = family.samples
            while samples:
                del samples[-PART_ROWS:]
