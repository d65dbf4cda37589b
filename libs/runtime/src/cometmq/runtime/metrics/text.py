# SPDX-License-Identifier: Apache-2.0
"""The Prometheus text format of metric families.

`generate_latest` of prometheus_client returns the same bytes (a test compares them). Rendering
holds the interpreter lock even on a thread, so the event loop has to wait. This module renders
10,000 series in less than half the time (bench/micro/bench_scrape.py).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from cometmq.runtime.metrics import PART_ROWS
from cometmq.runtime.metrics.formats import as_openmetrics

_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_EXPONENT_MIN: Final = 1e6  # Go writes larger numbers with an exponent
_go_string: Final[Callable[[float], str]] = floatToGoString


def render(families: Iterable[Metric]) -> bytes:
    """Render counters, gauges and histograms; may run on a worker thread."""
    lines: list[str] = []
    for family in families:
        assert family.type in {"counter", "gauge", "histogram"}, family.type
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"# HELP {name} {family.documentation.translate(_HELP_ESCAPES)}\n")
        lines.append(f"# TYPE {name} {family.type}\n")
        lines.extend(_sample_lines(family))
    return "".join(lines).encode()


def render_and_drop(families: list[Metric], *, is_openmetrics: bool = False) -> bytes:
    """Render families on a worker thread, and empty the list, a few samples at a time.

    Freeing all samples of a large broker at once would hold the interpreter lock for 10 ms.
    """
    texts: list[bytes] = []
    families.reverse()
    while families:
        family = families.pop()
        text = render([family])
        texts.append(as_openmetrics(text) if is_openmetrics else text)
        samples = family.samples
        while samples:
            del samples[-PART_ROWS:]
    return b"".join(texts)


def _sample_lines(family: Metric) -> Iterator[str]:
    shapes: dict[tuple[str, ...], tuple[list[str], str]] = {}
    for sample in family.samples:
        labels, value = sample.labels, sample.value
        names = tuple(labels)
        shape = shapes.get(names)
        if shape is None:
            order = sorted(names)
            pairs = ",".join(f'{name}="%s"' for name in order)
            shape = shapes[names] = order, f"%s{{{pairs}}} %s\n" if order else "%s %s\n"
        order, form = shape
        number = repr(float(value)) if 0 <= value < _EXPONENT_MIN else _go_string(value)
        line = form % (sample.name, *[labels[name] for name in order], number)
        # Few labels need escaping, and one test of the whole line is cheaper than one per label.
        if "\\" in line or line.count('"') != 2 * len(order) or line.count("\n") != 1:
            escaped = [labels[name].translate(_LABEL_ESCAPES) for name in order]
            line = form % (sample.name, *escaped, number)
        yield line
