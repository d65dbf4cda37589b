# SPDX-License-Identifier: Apache-2.0
"""Turn samples into ratios: as a table, as JSON, and as a plot for the documentation.

`python bench/report.py [RESULT.json]` prints a stored result and draws its plot again.
"""

import json
import platform
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from macro.parent import PARENT
from macro.rivals import RIVALS
from macro.scenarios import Sample, Samples
from macro.watched import WATCHED
from macro.workloads import MEGABYTE, MORE_IS_BETTER, WORKLOADS, Load, Scenario, Target

BENCH: Final = Path(__file__).resolve().parent
OUT: Final = BENCH / "out"
BASELINE: Final = BENCH / "baseline.json"
OTHERS_CPUS_MAX: Final = 0.2  # if other programs use more than this, the rates are distorted
WORSE_MAX: Final = 1.10  # largest ratio to the baseline that is not a regression

Result: TypeAlias = dict[str, Any]

PAIRED: Final = (PARENT, WATCHED)
"""The servers whose samples are compared round by round."""
TITLES: Final = {"redis": "Redis", "nats": "NATS"}

# Metric -> (name, unit, divisor) in the table.
UNITS: Final[Mapping[str, tuple[str, str, float]]] = {
    "messages_per_s": ("messages", "/s", 1),
    "pairs_per_s": ("committed", "/s", 1),
    "delivered_per_s": ("delivered", "/s", 1),
    "p50_us": ("p50", "us", 1),
    "p99_us": ("p99", "us", 1),
    "p999_us": ("p99.9", "us", 1),
    "p9999_us": ("p99.99", "us", 1),
    "cpu_seconds_per_million": ("cpu per million", "s", 1),
    "others_cpus": ("used by other programs", "cpus", 1),
    "anonymous_bytes": ("anonymous memory", "MB", MEGABYTE),
    "idle_cpus": ("idle, of a core", "%", 0.01),
    "disk_bytes": ("disk", "MB", MEGABYTE),
    "start_s": ("start", "s", 1),
    "recovery_s": ("recovery", "s", 1),
    "share_of_single": ("of a single broker's rate", "%", 0.01),
    "share_of_plain": ("of the plain rate", "%", 0.01),
    "share_of_syncs": ("of the disk's syncs", "%", 0.01),
    "device_syncs_per_s": ("syncs of the disk", "/s", 1),
    "native_share": ("requests on the native path", "%", 0.01),
    "catch_up_bytes_per_s": ("copied", "MB/s", MEGABYTE),
    "share_of_copy": ("of a plain copy's rate", "%", 0.01),
    "p99_growth": ("p99 while the slave copies, of p99 before", "%", 0.01),
    "p99_growth_of_copy": ("p99 during the plain copy, of p99 before", "%", 0.01),
    "slave_anonymous_bytes": ("anonymous memory of the slave", "MB", MEGABYTE),
}


@dataclass(frozen=True)
class Row:
    """The medians of one workload's metric over all rounds.

    `java` is the median of the server that CometMQ is compared with, which may be CometMQ without
    its native path.
    """

    workload: Load | Scenario
    metric: str
    comet: float | None
    java: float | None
    rivals: tuple[float | None, ...] = ()
    """The medians of the servers in `rivals_of`, in the same order."""
    paired: float | None = None
    """The median of the ratios of single rounds, if it is compared instead of the medians."""

    @property
    def ratio(self) -> float | None:
        """Return CometMQ's value divided by Java's, or None if either is missing."""
        if self.paired is not None:
            return self.paired
        return self.comet / self.java if self.comet is not None and self.java else None

    @property
    def targets(self) -> list[Target]:
        """Return the workload's targets for this metric."""
        return [target for target in self.workload.targets if target.metric == self.metric]


def make_result(
    samples: Samples, floor: Sample, *, options: Mapping[str, object], measured_at: str
) -> Result:
    """Return all measurements, with the machine and the options of the run."""
    return {
        "measured_at": measured_at,
        "machine": {
            "cpu": _cpu_name(),
            "system": platform.release(),
            "python": platform.python_version(),
        },
        "options": dict(options),
        "floor_messages_per_s": floor,
        "samples": samples,
        "ratios": {
            row.workload.name + "." + row.metric: round(row.ratio, 4)
            for row in rows(samples)
            if row.ratio is not None
        },
    }


def rows(samples: Samples) -> Iterator[Row]:
    """Yield the rows in the order of the workload table."""
    names = rivals_of(samples)
    for workload in WORKLOADS:
        by_server = samples.get(workload.name, {})
        for metric in UNITS:
            comet = _median(by_server.get("comet", ()), metric)
            java = _median(by_server.get(other(samples), ()), metric)
            rivals = tuple(_median(by_server.get(name, ()), metric) for name in names)
            if any(value is not None for value in (comet, java, *rivals)):
                yield Row(workload, metric, comet, java, rivals, _paired(by_server, metric))


def other(samples: Samples) -> str:
    """Return the server with which CometMQ is compared."""
    names = {name for by_server in samples.values() for name in by_server}
    return next((it for it in ("python", *PAIRED) if it in names), "java")


def rivals_of(samples: Samples) -> list[str]:
    """Return the servers other than RocketMQ brokers, in the order of their columns."""
    names = {name for by_server in samples.values() for name in by_server}
    return [name for name in RIVALS if name in names]


def _median(rounds: Sequence[Sample], metric: str) -> float | None:
    values = [sample[metric] for sample in rounds if metric in sample]
    return statistics.median(values) if values else None


def _paired(by_server: Mapping[str, Sequence[Sample]], metric: str) -> float | None:
    """Return the median ratio of the rounds beside the parent, or with and without a console.

    The difference is smaller than the changes of a machine's speed within a minute, so only the two
    samples of one round are compared.
    """
    beside = next((by_server[name] for name in PAIRED if name in by_server), ())
    rounds = zip(by_server.get("comet", ()), beside, strict=False)
    ratios = [own[metric] / with_it[metric] for own, with_it in rounds if with_it.get(metric)]
    return statistics.median(ratios) if ratios else None


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def table(result: Result, baseline: Result | None = None) -> str:
    """Return the ratios as text: one line per metric, with its targets and verdicts."""
    is_beside_java = other(result["samples"]) == "java"
    names = {"java": "Java", "python": "on Python", PARENT: "parent", WATCHED: "with console"}
    beside = names[other(result["samples"])]
    rivals = "".join(f"{TITLES[name]:>12}" for name in rivals_of(result["samples"]))
    lines = [f"{'':42}{'CometMQ':>12}{beside:>12}{'ratio':>8}{'before':>8}{rivals}  target"]
    before = (baseline or {}).get("ratios", {}) if is_beside_java else {}
    title = ""
    for row in rows(result["samples"]):
        if row.workload.title != title:
            title = row.workload.title
            lines.append(title)
        targets = row.targets if is_beside_java else ()
        lines.append(_line(row, before.get(f"{row.workload.name}.{row.metric}"), targets))
    floor = ", ".join(f"{k} {v:,.0f}/s" for k, v in result["floor_messages_per_s"].items())
    if floor:
        lines.append(f"generator against a server that only answers: {floor}")
    if (others := others_cpus(result)) > OTHERS_CPUS_MAX:
        lines.append(
            f"other programs used up to {others:.2f} processors meanwhile: a server of many "
            "threads then gets more of the machine; measure again when it is quiet"
        )
    return "\n".join(lines)


def others_cpus(result: Result) -> float:
    """Return the most CPUs that other programs used during a rate workload."""
    medians = [
        (row.comet or 0, row.java or 0)
        for row in rows(result["samples"])
        if row.metric == "others_cpus"
    ]
    return max(map(max, medians), default=0.0)


def _line(row: Row, before: float | None, targets: Sequence[Target]) -> str:
    name, unit, divisor = UNITS[row.metric]
    cells = [
        f"  {name + ' [' + unit + ']':<40}",
        *(cell(value, divisor) for value in (row.comet, row.java)),
        f"{row.ratio:>8.3f}" if row.ratio is not None else f"{'-':>8}",
        f"{before:>8.3f}" if before is not None else f"{'-':>8}",
        *(cell(value, divisor) for value in row.rivals),
    ]
    return "".join(cells) + "  " + ", ".join(verdict(row, target) for target in targets)


def cell(value: float | None, divisor: float) -> str:
    """Format a number with at least three significant digits; None is shown as a dash."""
    if value is None:
        return f"{'-':>12}"
    scaled = value / divisor
    return f"{scaled:>12,.0f}" if scaled >= 1000 else f"{scaled:>12.3g}"


def verdict(row: Row, target: Target) -> str:
    """Return a target and whether it was met, for example `>= 1.5x met`."""
    sign = ">=" if target.metric in MORE_IS_BETTER else "<="
    _, unit, divisor = UNITS[target.metric]
    bound = f"{target.bound:g}x" if target.of_java else f"{target.bound / divisor:g} {unit}"
    met = target.is_met(comet=row.comet, java=row.java) if row.comet is not None else None
    word = {True: "met", False: "MISSED", None: "not measured"}[met]
    return f"{sign} {bound} {word}"


def missed(result: Result) -> list[str]:
    """Return the measured targets that were missed."""
    return [
        f"{row.workload.title}: {UNITS[row.metric][0]} {verdict(row, target)}"
        for row in rows(result["samples"])
        for target in row.targets
        if row.comet is not None and target.is_met(comet=row.comet, java=row.java) is False
    ]


def regressions(result: Result, baseline: Result) -> list[str]:
    """Return the ratios with a target that are more than a tenth worse than the baseline."""
    found = []
    for row in rows(result["samples"]):
        before = baseline["ratios"].get(f"{row.workload.name}.{row.metric}")
        if before is None or row.ratio is None or not row.targets:
            continue
        worse = before / row.ratio if row.metric in MORE_IS_BETTER else row.ratio / before
        if worse > WORSE_MAX:
            found.append(f"{row.workload.name}.{row.metric}: {before:.3f} -> {row.ratio:.3f}")
    return found


def write(result: Result, directory: Path = OUT) -> None:
    """Write the result and its plot to a folder."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (directory / "result.json").write_text(text + "\n", encoding="utf-8")
    plot(result, directory / "result.png")


def write_baseline(result: Result, path: Path = BASELINE) -> Result:
    """Save a result as the baseline of later runs; return the whole baseline.

    Figures of workloads that were not run are kept.
    """
    before = load(path)
    if before is not None:
        samples = {**before["samples"], **result["samples"]}
        ratios = {**before["ratios"], **result["ratios"]}
        result = {**result, "samples": samples, "ratios": ratios}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def plot(result: Result, path: Path) -> None:
    """Plot how many times better CometMQ is than Java, for each metric with a target."""
    import matplotlib as mpl  # noqa: PLC0415  costs a second, needed only here

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    shown = [row for row in rows(result["samples"]) if row.ratio and row.targets]
    if not shown:
        return
    names = [f"{row.workload.title}: {UNITS[row.metric][0]}" for row in shown]
    figure, axes = plt.subplots(figsize=(9, 0.45 * len(shown) + 1.4), layout="constrained")
    axes.barh(names, [_advantage(row.metric, row.ratio or 1) for row in shown], color="#3b7ea1")
    for index, row in enumerate(shown):
        for target in (target for target in row.targets if target.of_java):
            axes.plot(_advantage(row.metric, target.bound), index, "k|", markersize=18)
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("times better than Java RocketMQ 4.9.4 (mark: the target)")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _advantage(metric: str, ratio: float) -> float:
    """Return a ratio that is above 1 if CometMQ is better, whatever the metric."""
    return ratio if metric in MORE_IS_BETTER else 1 / ratio


def load(path: Path) -> Result | None:
    """Return a stored result, or None if there is none."""
    if not path.exists():
        return None
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    return result


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT / "result.json"
    result = load(path)
    if result is None:
        print(f"no result at {path}: run make bench", file=sys.stderr)
        return 2
    print(table(result, load(BASELINE)))
    plot(result, path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
