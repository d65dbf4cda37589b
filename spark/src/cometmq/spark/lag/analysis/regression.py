# SPDX-License-Identifier: Apache-2.0
"""Linear regression in SQL: mergeable sums for a hash aggregate, and the figures they yield.

Times and offsets must be relative to the newest point: squares of offsets near 10^12 and of times
near 10^9 would exceed the precision of a double.
"""

from typing import Final

_SUMS: Final = {
    "n": "count(CASE WHEN {ok} THEN 1 END)",
    "x": "sum(CASE WHEN {ok} THEN {x} END)",
    "xx": "sum(CASE WHEN {ok} THEN {x} * {x} END)",
    "y": "sum(CASE WHEN {ok} THEN {y} END)",
    "xy": "sum(CASE WHEN {ok} THEN {x} * {y} END)",
    "yy": "sum(CASE WHEN {ok} THEN {y} * {y} END)",
}
POINTS_MIN: Final = 3


def sums(name: str, x: str, y: str, where: str) -> str:
    """Build SQL for the aggregates of regression `name`, over points with known x and y."""
    values = {"x": x, "y": y, "ok": f"{where} AND {y} IS NOT NULL"}
    return ",\n".join(f"{sql.format(**values)} AS {name}_{it}" for it, sql in _SUMS.items())


def slope(name: str) -> str:
    """Build SQL for the slope; null if all points share one time, or for fewer than three."""
    return (
        f"CASE WHEN {name}_n >= {POINTS_MIN} THEN try_divide("
        f"{name}_xy - {name}_x * {name}_y / {name}_n, {_spread(name, 'x')}) END"
    )


def standard_error(name: str) -> str:
    """Build SQL for the standard error of the slope: 0 for points exactly on a line, null for fewer
    than three.
    """
    explained = f"try_divide({_co_spread(name)} * {_co_spread(name)}, {_spread(name, 'x')})"
    left = f"greatest(0, {_spread(name, 'y')} - {explained})"
    return (
        f"CASE WHEN {name}_n >= {POINTS_MIN} THEN "
        f"sqrt(try_divide({left} / ({name}_n - 2), {_spread(name, 'x')})) END"
    )


def r_squared(name: str) -> str:
    """Build SQL for R², the share of variance that the line explains; null without variance."""
    explained = f"{_co_spread(name)} * {_co_spread(name)}"
    both = f"{_spread(name, 'x')} * {_spread(name, 'y')}"
    share = f"try_divide({explained}, {both})"
    return f"CASE WHEN {name}_n >= {POINTS_MIN} THEN nvl2({share}, least(1, {share}), NULL) END"


def _spread(name: str, of: str) -> str:
    return f"({name}_{of}{of} - {name}_{of} * {name}_{of} / nullif({name}_n, 0))"


def _co_spread(name: str) -> str:
    return f"({name}_xy - {name}_x * {name}_y / nullif({name}_n, 0))"
