# SPDX-License-Identifier: Apache-2.0
"""Condenses the snapshots of the long window into one row per series (group and queue).

Points
    A point is one series in one snapshot; points are sorted newest first. `t` and `y*` are its
    time and offsets relative to the newest point. `live` points are the points since an offset
    last went backwards, because earlier rates no longer apply.
"""

from typing import Final

from pyspark.sql import DataFrame

from cometmq.remoting import names
from cometmq.spark.lag.rules import Rules

KEY: Final = "cluster, `group`, broker_name, topic, queue_id"
KEY_COLUMNS: Final = [name.strip("`") for name in KEY.split(", ")]
GROUP_KEY: Final = KEY_COLUMNS[:2]
LAG_TOPICS: Final = (
    f"topic NOT IN ('{names.SCHEDULE_TOPIC}', '{names.HALF_TOPIC}', '{names.OP_HALF_TOPIC}')"
)
"""Condition on progress that leaves out the topics whose only consumers are brokers."""

# Short names in SQL: c, n and m are the committed, the oldest and the next offset of a queue.

# A snapshot may contain a row twice; `newer_id` identifies the duplicates for the next step.
_UNIQUE: Final = f"""
SELECT {KEY}, snapshot_id, consumer_offset AS c, min_offset AS n, max_offset AS m,
       consume_ts, next_ts, last_update_ts, read_ts, max_read_ts, online, filtered,
       coalesce(message_model = 'BROADCASTING', false) AS broadcast,
       lag(snapshot_id) OVER (PARTITION BY {KEY} ORDER BY snapshot_id DESC) AS newer_id
FROM {{progress}}
"""

_NEIGHBOURS: Final = f"""
SELECT *,
       lead(c) OVER w AS prev_c, lead(m) OVER w AS prev_m, lead(n) OVER w AS prev_n,
       lead(read_ts) OVER w AS prev_ts, lead(max_read_ts) OVER w AS prev_max_ts,
       first_value(snapshot_id) OVER w AS last_id, first_value(c) OVER w AS last_c,
       first_value(m) OVER w AS last_m, first_value(n) OVER w AS last_n,
       first_value(read_ts) OVER w AS last_ts, first_value(max_read_ts) OVER w AS last_max_ts
FROM {{unique}}
WHERE newer_id IS NULL OR newer_id <> snapshot_id
WINDOW w AS (PARTITION BY {KEY} ORDER BY snapshot_id DESC)
"""


# Spark's `greatest` and `least` skip nulls, so a condition outside the call guards every nullable
# argument.


def seconds(later: str, earlier: str) -> str:
    return f"((unix_micros({later}) - unix_micros({earlier})) / 1e6D)"


LAG: Final = "CASE WHEN c IS NOT NULL THEN greatest(0, m - greatest(c, n)) WHEN m <= n THEN 0 END"
# An offset of 0 also means "nothing consumed yet", so only c > 0 counts as a loss.
LOST: Final = "CASE WHEN c > 0 THEN greatest(0, n - c) ELSE 0 END"
PREV_LOST: Final = "CASE WHEN prev_c > 0 THEN greatest(0, prev_n - prev_c) ELSE 0 END"

# Message c arrived between two snapshots of m: this is the seconds from there to `read_ts`.
_ARRIVED: Final = (
    f"{seconds('read_ts', 'max_read_ts')} + (m - greatest(c, n)) / CAST(m - prev_m AS double)"
    f" * {seconds('max_read_ts', 'prev_max_ts')}"
)
AGE: Final = f"""CASE
    WHEN c IS NULL THEN NULL
    WHEN next_ts IS NOT NULL THEN greatest(0D, {seconds("read_ts", "next_ts")})
    WHEN greatest(c, n) >= prev_m AND m > prev_m THEN greatest(0D, {_ARRIVED}) END"""
"""Age of the first unread message, if this snapshot or the previous one determines it."""

# `t` is the time of c, `tm` the time of n and m, which are read later in the same snapshot.
_MEASURES: Final = f"""
SELECT *,
       {seconds("read_ts", "last_ts")} AS t,
       {seconds("max_read_ts", "last_max_ts")} AS tm,
       {seconds("prev_ts", "last_ts")} AS prev_t,
       CAST(c - last_c AS double) AS yc, CAST(m - last_m AS double) AS ym,
       CAST(n - last_n AS double) AS yn,
       CAST((c - m) - (last_c - last_m) AS double) AS yd,
       {seconds("consume_ts", "last_ts")} AS yl,
       {LAG} AS behind, {LOST} AS lost, {PREV_LOST} AS prev_lost, {AGE} AS age,
       coalesce(c < prev_c, false) AS went_back,
       coalesce(c < prev_c, false) OR coalesce(m < prev_m, false) AS turned
FROM {{neighbours}}
"""

# `turned` marks a reset of c or a recreated topic; points older than that are not `live`.
_POINTS: Final = f"""
SELECT *,
       coalesce(sum(CAST(turned AS int)) OVER (
           PARTITION BY {KEY} ORDER BY snapshot_id DESC
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) = 0 AS live,
       t >= -{{window_s}} AS in_w,
       coalesce(prev_t >= -{{window_s}}, false) AS pair_in_w,
       coalesce(behind <= {{allowed_lag}}, false)
           OR coalesce(age <= {{allowed_age_s}}, false) AS fine
FROM {{measures}}
"""

_NEWEST: Final = "max(CASE WHEN snapshot_id = last_id THEN {0} END) AS {1}"
_FACTS: Final = ",\n".join(
    _NEWEST.format(*pair)
    for pair in (
        ("c", "c"),
        ("n", "n"),
        ("m", "m"),
        ("behind", "lag"),
        ("lost", "lost"),
        ("fine", "fine_now"),
        ("read_ts", "read_ts"),
        ("max_read_ts", "max_read_ts"),
        ("last_update_ts", "last_update_ts"),
        ("online", "online"),
        ("filtered", "filtered"),
    )
)


def _series() -> str:
    # Regressions over W: rc consumed, rm arrived, rd drained, rl store time of consumed messages;
    # over the long window: lc consumed, lm arrived, ln deleted.
    in_w, in_long = "live AND in_w", "live"
    return f"""
SELECT {KEY}, max(last_id) AS last_id,
       {_FACTS},
       bool_or(broadcast) AS broadcast,
       max(CASE WHEN greatest(c, n) = greatest(last_c, last_n) THEN next_ts END) AS next_ts,
       max(CASE WHEN c = last_c THEN consume_ts END) AS consume_ts,
       count(CASE WHEN in_w THEN 1 END) AS points_w,
       min(CASE WHEN in_w THEN c END) AS c_min,
       max(CASE WHEN in_w THEN c END) AS c_max,
       bool_or(went_back AND in_w AND pair_in_w) AS went_back,
       bool_or(lost > prev_lost AND in_w AND pair_in_w) AS losing,
       bool_or(fine AND in_w) AS fine_once,
       -min(CASE WHEN live AND c = last_c THEN t END) AS rest_s,
       -- The deletion of files, from the last snapshot that still had all of them.
       max(CASE WHEN live THEN struct(-yn AS gone, tm AS at) END) AS trimmed,
       bool_and(online OR NOT in_w) AS always_online,
       -min(CASE WHEN {in_w} THEN t END) AS covered_s,
       {sums("rc", "t", "yc", in_w)},
       {sums("rm", "tm", "ym", in_w)},
       {sums("rd", "t", "yd", in_w)},
       {sums("rl", "t", "yl", in_w)},
       {sums("lc", "t", "yc", in_long)},
       {sums("lm", "tm", "ym", in_long)},
       {sums("ln", "tm", "yn", in_long)}
FROM {{points}}
GROUP BY {KEY}
"""


def condense(progress: DataFrame, rules: Rules) -> DataFrame:
    sql = progress.sparkSession.sql
    unique = sql(_UNIQUE, progress=progress)
    neighbours = sql(_NEIGHBOURS, unique=unique)
    measures = sql(_MEASURES, neighbours=neighbours)
    points = sql(
        _POINTS,
        measures=measures,
        window_s=rules.window_s,
        allowed_lag=rules.allowed_lag,
        allowed_age_s=rules.allowed_age_s,
    )
    return sql(_series(), points=points)


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
