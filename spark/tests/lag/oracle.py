# SPDX-License-Identifier: Apache-2.0
"""Computes the figures of a report a second time, in plain Python on DuckDB rows.

It shares no code with the report, and processes each queue alone, point by point, as in a manual
calculation.
"""

import itertools
import math
import statistics
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import duckdb

Row = dict[str, Any]
KEY = ("cluster", "group", "broker_name", "topic", "queue_id")


def queue_table(root: Path, rules: Any) -> dict[tuple[Any, ...], Row]:
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    tables = {name: _rows(database, root, name) for name in ("progress", "offsets", "brokers")}
    tables["groups"] = _rows(database, root, "groups", "message_model = 'BROADCASTING'")
    last_id = max(row["snapshot_id"] for row in tables["brokers"])
    recent_id = last_id - rules.long_window_s // 60
    brokers: dict[Any, list[Row]] = defaultdict(list)
    for row in sorted(tables["brokers"], key=lambda it: it["snapshot_id"]):
        if row["snapshot_id"] >= recent_id:
            brokers[row["cluster"], row["broker_name"]].append(row)
    facts = {
        key: _broker(points, rules)
        for key, points in brokers.items()
        if points[-1]["snapshot_id"] == last_id
    }
    ends: dict[Any, dict[int, tuple[float, int]]] = defaultdict(dict)
    for row in tables["offsets"]:
        key = (row["cluster"], row["broker_name"], row["topic"], row["queue_id"])
        if row["snapshot_id"] >= last_id - rules.history_s // 60:
            ends[key][row["snapshot_id"]] = (_s(row["read_ts"]), row["max_offset"])
    seen = {(row["cluster"], row["group"]) for row in tables["groups"]}
    series: dict[Any, dict[int, Row]] = defaultdict(dict)
    for row in tables["progress"]:
        if row["snapshot_id"] >= recent_id:
            series[tuple(row[name] for name in KEY)][row["snapshot_id"]] = row
    found = {}
    for key, by_id in series.items():
        fact = facts.get((key[0], key[2]))
        is_present = max(by_id) == last_id
        if fact is None or (not is_present and fact["reachable"]):
            continue
        points = [by_id[number] for number in sorted(by_id)]
        history = ends[key[0], key[2], key[3], key[4]]
        found[key] = _queue(
            points, [history[it] for it in sorted(history)], fact, rules,
            is_present=is_present, is_broadcast=(key[0], key[1]) in seen,
        )  # fmt: skip
    return found


def _rows(
    database: duckdb.DuckDBPyConnection, root: Path, table: str, where: str = "true"
) -> list[Row]:
    cursor = database.execute(
        f"SELECT * FROM read_parquet('{root}/raw/{table}/*/*/*.parquet', hive_partitioning = false)"
        f" WHERE {where}"
    )
    names = [it[0] for it in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _s(moment: datetime | None) -> float:
    return math.nan if moment is None else moment.timestamp()


def _broker(points: list[Row], rules: Any) -> Row:
    last = dict(points[-1])
    for name in ("file_reserved_hours", "delete_when", "disk_max_used_ratio", "clean_forcibly"):
        last[name] = next((it[name] for it in reversed(points) if it[name] is not None), None)
    ratio = last["commitlog_disk_ratio"]
    slope = _growth(points, "commitlog_disk_ratio")
    limit = min((last["disk_max_used_ratio"] or 75) / 100, 0.85)
    full = _reached(ratio, limit, slope)
    forced = None if last["clean_forcibly"] is False else _reached(ratio, 0.85, slope)
    hours = last["file_reserved_hours"]
    return {
        "reachable": last["reachable"],
        "keeps_s": (72 if hours is None else hours) * 3600,
        "hours": {int(it) for it in (last["delete_when"] or "04").split(";")},
        "fills": full is not None and full <= rules.disk_hours * 3600,
        "full_s": full,
        "forced_s": forced,
        "sweep_s": _sweep(points, ratio, slope),
    }


def _reached(ratio: float | None, limit: float, slope: float) -> float | None:
    if ratio is None:
        return None
    if ratio >= limit:
        return 0.0
    return (limit - ratio) / slope if slope > 0 else None


def _sweep(points: list[Row], ratio: float | None, slope: float) -> float | None:
    begin, end = (points[-1][name] for name in ("commitlog_min", "commitlog_max"))
    written = _growth(points, "commitlog_max")
    if begin is None or end is None or ratio is None:
        return None
    if slope == 0 or written <= 0 or end <= begin:
        return None
    used_bytes = written / slope * ratio
    return None if used_bytes < 0.9 * (end - begin) else (end - begin) / written


def _growth(points: list[Row], name: str) -> float:
    """Return the steeper one of two slopes: of all values, and since the last lowest one."""
    values = [(_s(it["read_ts"]) - _s(points[-1]["read_ts"]), it[name])
              for it in points if it[name] is not None]  # fmt: skip
    slopes = [line["slope"] for line in [fit(values)] if line is not None]
    if len({y for _, y in values}) == 1:
        return 0.0
    count = len(values)
    trims = [i for i in range(1, count) if values[i - 1][1] - values[i][1] >= 0.01
             and not (i > 1 and values[i - 1][1] - values[i][1]
                      <= 2 * (values[i - 1][1] - values[i - 2][1]))]  # fmt: skip
    values = values[trims[-1] if trims else 0 :]
    low = min((y for _, y in values), default=0)
    begin = max((i for i, (_, y) in enumerate(values) if y == low), default=0)
    steps = [values[i + 1][1] - values[i][1] for i in range(begin)]
    if values and not values[-1][1] - low > 2 * max(steps, default=0):
        return max(slopes, default=0.0)
    waits = sorted(values[i + 1][0] - values[i][0] for i in range(len(values) - 1))
    usual = statistics.median(waits) if waits else 0
    has_gap = begin + 1 < len(values) and values[begin + 1][0] - values[begin][0] > 2 * usual
    for late in [values[begin:], values[begin + 1 :]][: 1 + has_gap]:
        slopes += _late_slopes(late, values, count)
    return max(slopes, default=0.0)


def _late_slopes(
    late: list[tuple[float, float]], values: list[tuple[float, float]], count: int
) -> list[float]:
    slopes, low = [], min((y for _, y in late), default=0)
    if len(late) == 2 and count > 2 and all(y < late[1][1] for _, y in values[:-1]):
        slopes.append((late[1][1] - low) / -late[0][0] if late[0][0] else 0)
    line = fit(late) if len({y for _, y in late}) > 1 else None
    slopes += [line["slope"]] if line is not None else [0.0] * (len(late) > 2)
    return slopes


def fit(points: list[tuple[float, float]]) -> dict[str, float] | None:
    """Fit a line by least squares; return None for fewer than three points."""
    count = len(points)
    if count < 3:
        return None
    mean_x = math.fsum(x for x, _ in points) / count
    mean_y = math.fsum(y for _, y in points) / count
    sxx = math.fsum((x - mean_x) ** 2 for x, _ in points)
    sxy = math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    syy = math.fsum((y - mean_y) ** 2 for _, y in points)
    if not sxx:
        return None
    slope = sxy / sxx
    rest = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return {
        "slope": slope,
        "error": math.sqrt(rest / (count - 2) / sxx),
        "r2": sxy * sxy / (sxx * syy) if syy else math.nan,
    }


def _lag(row: Row) -> int | None:
    c, n, m = row["consumer_offset"], row["min_offset"], row["max_offset"]
    if c is None:
        return 0 if m <= n else None
    return max(0, m - max(c, n))


def _lost(row: Row) -> int:
    c = row["consumer_offset"]
    return max(0, row["min_offset"] - c) if c else 0


def _is_fine(row: Row, before: Row | None, rules: Any) -> bool:
    lag, c = _lag(row), row["consumer_offset"]
    if lag is not None and lag <= rules.allowed_lag:
        return True
    if c is None:
        return False
    if row["next_ts"] is not None:
        return max(0.0, _s(row["read_ts"]) - _s(row["next_ts"])) <= rules.allowed_age_s
    if before is None or row["max_offset"] <= before["max_offset"]:
        return False
    position = max(c, row["min_offset"])
    if position < before["max_offset"]:
        return False
    begin, end = _s(before["max_read_ts"]), _s(row["max_read_ts"])
    share = (position - before["max_offset"]) / (row["max_offset"] - before["max_offset"])
    arrived = begin + share * (end - begin)
    return max(0.0, _s(row["read_ts"]) - arrived) <= rules.allowed_age_s + 1e-9


def _arrival(position: int, history: list[tuple[float, int]]) -> tuple[float, bool] | None:
    """Return a message's arrival time, and whether it may have arrived earlier."""
    before = max((i for i, (_, m) in enumerate(history) if m <= position), default=None)
    after = next((i for i, (_, m) in enumerate(history)
                  if m > position and (before is None or i > before)), None)  # fmt: skip
    if after is None:
        return None
    if before is None:
        return history[after][0], True
    (t0, m0), (t1, m1) = history[before], history[after]
    return t0 + (position - m0) / (m1 - m0) * (t1 - t0), False


def _dies_s(stored_s: float, now_s: float, fact: Row, zone: ZoneInfo) -> float | None:
    moment = max(now_s, stored_s + fact["keeps_s"])
    local = datetime.fromtimestamp(moment, UTC)
    for _ in range(5 * 24 * 60):
        if local.astimezone(zone).hour in fact["hours"]:
            return local.timestamp()
        local = local.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return None


class _Points(NamedTuple):
    """The snapshots of one queue, and the subset from which its rates are computed."""

    all: list[Row]
    live: list[Row]
    """The snapshots since the last jump backwards: a rewind or a recreated topic."""
    window: list[Row]
    live_window: list[Row]

    @property
    def last(self) -> Row:
        return self.all[-1]

    @property
    def now_s(self) -> float:
        return _s(self.last["read_ts"])

    def line(self, rows: list[Row], x: str, value: Any) -> dict[str, float] | None:
        pairs = [(_s(row[x]) - _s(self.last[x]), value(row, self.last)) for row in rows]
        return fit([(at, y) for at, y in pairs if y is not None])


def _points(points: list[Row], rules: Any) -> _Points:
    first_live = 0
    for i in range(1, len(points)):
        a, b = points[i - 1], points[i]
        if _went_back(a, b) or b["max_offset"] < a["max_offset"]:
            first_live = i
    live = points[first_live:]
    begin_s = _s(points[-1]["read_ts"]) - rules.window_s
    window = [it for it in points if _s(it["read_ts"]) >= begin_s]
    return _Points(points, live, window, [it for it in live if it in window])


def _went_back(a: Row, b: Row) -> bool:
    return (
        a["consumer_offset"] is not None
        and b["consumer_offset"] is not None
        and b["consumer_offset"] < a["consumer_offset"]
    )


def _consumed(row: Row, last: Row) -> float | None:
    if row["consumer_offset"] is None or last["consumer_offset"] is None:
        return None
    return row["consumer_offset"] - last["consumer_offset"]  # type: ignore[no-any-return]


def _caught_up(row: Row, last: Row) -> float | None:
    if _consumed(row, last) is None:
        return None
    now = last["consumer_offset"] - last["max_offset"]
    return (row["consumer_offset"] - row["max_offset"]) - now  # type: ignore[no-any-return]


def _consume_time(row: Row, last: Row) -> float | None:
    return None if row["consume_ts"] is None else _s(row["consume_ts"]) - _s(last["read_ts"])


def _lines(points: _Points) -> dict[str, dict[str, float] | None]:
    def arrived(row: Row, last: Row) -> int:
        return row["max_offset"] - last["max_offset"]  # type: ignore[no-any-return]

    def expired(row: Row, last: Row) -> int:
        return row["min_offset"] - last["min_offset"]  # type: ignore[no-any-return]

    recent, live = points.live_window, points.live
    return {
        "out": points.line(recent, "read_ts", _consumed),
        "in": points.line(recent, "max_read_ts", arrived),
        "drain": points.line(recent, "read_ts", _caught_up),
        "speed": points.line(recent, "read_ts", _consume_time),
        "out_long": points.line(live, "read_ts", _consumed),
        "in_long": points.line(live, "max_read_ts", arrived),
        "min_long": points.line(live, "max_read_ts", expired),
    }


def _lag_time(points: _Points, history: list[tuple[float, int]]) -> Row:
    last, now_s = points.last, points.now_s
    age = interp = None
    method = "unknown"
    here = _position(last)
    if _lag(last) == 0:
        age = interp = 0.0
        method = "zero"
    elif last["consumer_offset"] is not None:
        found = _arrival(here, history)
        if found is not None:
            interp = max(0.0, now_s - found[0])
            method = "extrap_min" if found[1] else "interp"
        same = [
            it["next_ts"]
            for it in points.all
            if it["next_ts"] is not None and _position(it) == here
        ]
        if same:
            age = max(0.0, now_s - _s(max(same)))
            method = "exact"
    return {
        "lag_age_s": age,
        "lag_interp_s": interp,
        "lag_time_s": interp if age is None else age,
        "lag_time_method": method,
    }


def _time_to_loss(
    points: _Points,
    lines: Row,
    log_speed: float | None,
    time: float | None,
    fact: Row,
    rules: Any,
    state: Row,
) -> Row:
    last, now_s = points.last, points.now_s
    c, lag, lost = last["consumer_offset"], _lag(last), _lost(last)
    ttl_time = ttl_disk = None
    if lag and c is not None:
        if not log_speed or log_speed <= 0:
            if time is not None:
                at = max(now_s, now_s - time + fact["keeps_s"])
                dies = _dies_s(now_s - time, now_s, fact, ZoneInfo(rules.timezone))
                if fact["full_s"] is not None and now_s + fact["full_s"] <= at:
                    dies = at
                ttl_time = None if dies is None else dies - now_s
        elif log_speed < 1 and time is not None:
            ttl_time = max(0.0, fact["keeps_s"] - time) / (1 - log_speed)
        out = max(0.0, lines["out_long"]["slope"]) if lines["out_long"] else 0.0
        ttl_disk = _disk_loss(points, lines, out, fact, rules, state)
    loss = min((it for it in (ttl_time, ttl_disk) if it is not None), default=None)
    if lag and c is not None and lost:
        loss = 0.0
    return {
        "ttl_time_s": ttl_time,
        "ttl_disk_s": ttl_disk,
        "time_to_loss_s": loss,
        "ttl_model": _model(loss, lost, ttl_disk),
    }


def _disk_loss(
    points: _Points, lines: Row, out: float, fact: Row, rules: Any, state: Row
) -> float | None:
    last = points.last
    read, stored = (last[it] - last["min_offset"] for it in ("consumer_offset", "max_offset"))
    found = []
    expires = _deletion_rate(points, lines)
    if fact["fills"] and expires is not None and expires > out:
        found.append(max(0, read) / (expires - out))
    forced, sweep = fact["forced_s"], fact["sweep_s"]
    if forced is not None and not _keeps_up(state, forced, rules):
        if sweep is None:
            found.append(forced)
        elif stored / sweep > out:
            found.append(forced + max(0, read) / (stored / sweep - out))
    return min(found, default=None)


def _deletion_rate(points: _Points, lines: Row) -> float | None:
    """Return messages deleted per second: the trend, or the mean since the first deletion."""
    rates = [lines["min_long"]["slope"]] if lines["min_long"] else []
    low = min(it["min_offset"] for it in points.live)
    at = max(_s(it["max_read_ts"]) for it in points.live if it["min_offset"] == low)
    seconds = _s(points.last["max_read_ts"]) - at
    if seconds:
        rates.append((points.last["min_offset"] - low) / seconds)
    return max(rates, default=None)


def _keeps_up(state: Row, forced: float, rules: Any) -> bool:
    high = state["eta_high_s"]
    return bool(
        state["fine_now"]
        or (state["fine_once"] and forced > 2 * rules.window_s)
        or (high is not None and high < forced)
    )


def _lag_span(points: _Points) -> float | None:
    last = points.last
    if _lag(last) == 0:
        return 0.0
    c = last["consumer_offset"]
    consumed = [
        it["consume_ts"]
        for it in points.all
        if it["consume_ts"] is not None and c is not None and it["consumer_offset"] == c
    ]
    if not consumed or last["last_update_ts"] is None:
        return None
    return max(0.0, _s(last["last_update_ts"]) - _s(max(consumed)))


def _stands(points: _Points) -> bool:
    committed = _committed(points)
    return bool(committed) and min(committed) == max(committed)


def _committed(points: _Points) -> list[int]:
    offsets = [it["consumer_offset"] for it in points.window]
    return [offset for offset in offsets if offset is not None]


def _drains(drain: dict[str, float] | None) -> bool:
    return drain is not None and drain["slope"] > 0 and drain["slope"] > 2 * drain["error"]


def _catch_up(lag: int | None, drain: dict[str, float] | None) -> Row:
    eta = low = high = None
    if lag == 0:
        eta = low = high = 0.0
    elif lag and drain and _drains(drain):
        eta = lag / drain["slope"]
        low = lag / (drain["slope"] + drain["error"])
        high = lag / (drain["slope"] - drain["error"])
    return {"eta_catchup_s": eta, "eta_low_s": low, "eta_high_s": high}


def _state(points: _Points, rules: Any) -> Row:
    every, window = points.all, points.window
    fine = {
        it["snapshot_id"]: _is_fine(it, every[i - 1] if i else None, rules)
        for i, it in enumerate(every)
    }
    pairs = list(itertools.pairwise(window))
    return {
        "losing": any(_lost(b) > _lost(a) for a, b in pairs),
        "online": points.last["online"],
        "always_online": all(it["online"] for it in window),
        "fine_now": fine[points.last["snapshot_id"]],
        "fine_once": any(fine[it["snapshot_id"]] for it in window),
        "stands": _stands(points),
        "rest_s": _rest_s(points),
        "back": any(_went_back(a, b) for a, b in pairs),
        "top": max(_committed(points), default=None),
    }


def _rest_s(points: _Points) -> float | None:
    """Return for how long the committed offset has been what it is."""
    c = points.last["consumer_offset"]
    same = [_s(it["read_ts"]) for it in points.live if it["consumer_offset"] == c]
    return None if c is None else points.now_s - min(same)


def _rates(points: _Points, lines: Row) -> Row:
    drain = lines["drain"]

    def slope(name: str) -> float | None:
        return lines[name] and lines[name]["slope"]  # type: ignore[no-any-return]

    return {
        "rate_in": slope("in"),
        "rate_out": slope("out"),
        "rate_in_long": slope("in_long"),
        "rate_out_long": slope("out_long"),
        "drain": slope("drain"),
        "drain_se": drain and drain["error"],
        "rate_r2": drain and (None if math.isnan(drain["r2"]) else drain["r2"]),
        "points": sum(_caught_up(it, points.last) is not None for it in points.live_window),
    }


def _queue(
    rows: list[Row],
    history: list[tuple[float, int]],
    fact: Row,
    rules: Any,
    *,
    is_present: bool,
    is_broadcast: bool,
) -> Row:
    points = _points(rows, rules)
    lines = _lines(points)
    last = points.last
    c, n, m, lag = last["consumer_offset"], last["min_offset"], last["max_offset"], _lag(last)
    speed = lines["speed"]
    log_speed = 0.0 if _stands(points) else (None if speed is None else speed["slope"])
    lag_time = _lag_time(points, history)
    state = _state(points, rules) | _catch_up(lag, lines["drain"])
    loss = _time_to_loss(points, lines, log_speed, lag_time["lag_time_s"], fact, rules, state)
    state |= {
        "broadcast": is_broadcast or any(it["message_model"] == "BROADCASTING" for it in rows),
        "complete": is_present and len(points.window) >= rules.points_min,
        "loss": loss["time_to_loss_s"],
        "drains": _drains(lines["drain"]),
    }
    return {
        "status": _status(state, c, n, m, lag, rules),
        "present": is_present, "read_ts": last["read_ts"],
        "covered_s": max(points.now_s - _s(it["read_ts"]) for it in points.live_window),
        "online": last["online"], "filtered": last["filtered"],
        "consumer_offset": c, "min_offset": n, "max_offset": m,
        "lag": lag, "lost": _lost(last), "lag_span_s": _lag_span(points), "log_speed": log_speed,
        "retention_ratio": None if c is None or m == n else 100 * (m - c) / (m - n),
        **lag_time, **_rates(points, lines), **_catch_up(lag, lines["drain"]), **loss,
    }  # fmt: skip


def _position(row: Row) -> int:
    c = row["consumer_offset"]
    return row["min_offset"] if c is None else max(c, row["min_offset"])


def _model(loss: float | None, lost: int, disk: float | None) -> str:
    if loss is None:
        return "none"
    if lost:
        return "lost"
    return "disk" if loss == disk else "time"


def _status(s: Row, c: int | None, n: int, m: int, lag: int | None, rules: Any) -> str:
    if s["broadcast"]:
        return "BROADCAST"
    if not s["complete"]:
        return "UNKNOWN"
    if s["losing"]:
        return "LOST"
    if s["loss"] is not None and s["loss"] < rules.risk_hours * 3600:
        return "AT_RISK"
    if c is None and m > n and s["always_online"]:
        return "NEVER_COMMITTED"
    if lag is None:
        return "UNKNOWN"
    if s["fine_now"]:
        return "OK"
    if not s["online"] and s["stands"] and not s["fine_once"]:
        return "STOPPED"
    if s["back"] and c is not None and c < s["top"]:
        return "REWIND"
    if s["online"] and s["stands"] and not s["fine_once"]:
        return "STALLED"
    if s["fine_once"]:
        return "OK"
    rest_s = s["rest_s"] or 0
    if not s["online"] and rest_s >= rules.window_s / 2:
        return "STOPPED"
    if not s["online"] and rest_s > 0 and not s["drains"]:
        return "UNKNOWN"
    return "CATCHING_UP" if s["drains"] else "SLOW"
