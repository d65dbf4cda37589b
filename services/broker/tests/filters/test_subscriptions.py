# SPDX-License-Identifier: Apache-2.0

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.filters.compiling import COMPILED_CHARS_MAX, Compiler
from cometmq.broker.filters.sql import CHARS_MAX
from cometmq.broker.filters.subscriptions import FilterSubscriptions, filter_file
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.testing.runtime.clock import FakeClock

DAY_MS = 86_400_000


def sql(expression: str, *, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version
    )


def tags(topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string="*")


def table(clock: FakeClock | None = None, **fields: Any) -> FilterSubscriptions:
    return FilterSubscriptions(clock_ms=(clock or FakeClock()).now_ms, **fields)


class Turns(list[Callable[[], None]]):
    def run(self) -> int:
        """Run all pending turns; return how many ran."""
        count = 0
        while self:
            self.pop(0)()
            count += 1
        return count


def long_text(number: object) -> str:
    return f"load = '{number}'".ljust(CHARS_MAX)


def spend_all(compiler: Compiler) -> None:
    for number in range(COMPILED_CHARS_MAX // CHARS_MAX):
        compiler.check(long_text(f"spent {number}"), partial(Requester, number))


def expression(filters: FilterSubscriptions) -> str | None:
    found = filters.get("T", "G")
    return None if found is None else found.expression


@pytest.mark.parametrize("version", [4, 5, 6])
def test_another_expression_replaces_a_filter_whatever_its_version(version: int) -> None:
    """The group decides which of its members' subscriptions is the newest."""
    filters = table()
    filters.register("G", [sql("a > 5", version=5)])

    filters.register("G", [sql("b > 5", version=version)])

    found = filters.get("T", "G")
    assert found is not None
    assert (found.expression, found.client_version) == ("b > 5", version)


def test_dead_filters_are_deleted_after_a_day() -> None:
    clock = FakeClock()
    filters = table(clock)
    filters.register("G", [sql("a > 5"), sql("b > 5", topic="U")])
    filters.register("G", [sql("b > 5", topic="U")])
    clock.advance(DAY_MS - 1)
    filters.clean()
    assert filters.count == 2
    clock.advance(1)
    filters.clean()
    assert filters.count == 1
    assert filters.get("U", "G") is not None


def test_the_file_is_javas(tmp_path: Path) -> None:
    clock = FakeClock()
    file = filter_file(tmp_path / "consumerFilter.json")
    filters = table(clock, file=file)
    filters.register("G", [sql("a > 5", version=7)])
    assert filters.is_dirty
    file.write(filters.encode_for_file())
    assert not filters.is_dirty

    assert json.loads(file.path.read_bytes()) == {
        "filterDataByTopic": {
            "T": {
                "groupFilterData": {
                    "G": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [24, 26, 83]},
                        "bornTime": clock.now_ms(),
                        "clientVersion": 7,
                        "consumerGroup": "G",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "a > 5",
                        "expressionType": "SQL92",
                        "topic": "T",
                    }
                },
                "topic": "T",
            }
        }
    }


def test_filters_of_a_file_count_as_dead_since_before_the_start(tmp_path: Path) -> None:
    clock = FakeClock()
    file = filter_file(tmp_path / "consumerFilter.json")
    filters = table(clock, file=file)
    filters.register("G", [sql("a > 5")])
    file.write(filters.encode_for_file())
    clock.advance(60_000)

    loaded = table(clock, file=file)

    found = loaded.get("T", "G")
    assert found is not None
    assert found.dead_time == clock.now_ms() - 30_000
    clock.advance(DAY_MS - 30_000)
    loaded.clean()
    assert loaded.count == 0


def test_an_unknown_type_in_the_file_is_kept_but_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "consumerFilter.json"
    data = {"bornTime": 1, "consumerGroup": "G", "expressionType": "SQL2050", "topic": "T"}
    path.write_text(
        json.dumps({"filterDataByTopic": {"T": {"groupFilterData": {"G": data}, "topic": "T"}}})
    )
    found = table(file=filter_file(path)).get("T", "G")
    assert found is not None
    assert found.compiled() is None


def test_a_filter_compiled_in_steps_is_stored_when_ready() -> None:
    turns = Turns()
    clock = FakeClock()
    filters = table(clock, compiler=Compiler(clock.now_ms, turns.append))
    filters.register("G", [sql(long_text("late"))])
    assert filters.count == 0
    turns.run()
    found = filters.get("T", "G")
    assert found is not None
    assert filters.compiled(found, partial(Requester, "a")) is not None


@pytest.mark.parametrize("leave", [True, False])
def test_a_filter_dropped_during_compilation_is_not_stored(leave: bool) -> None:
    turns = Turns()
    clock = FakeClock()
    filters = table(clock, compiler=Compiler(clock.now_ms, turns.append))
    filters.register("G", [sql(long_text(f"left {leave}"))])
    if leave:
        filters.unregister("G")
    else:
        filters.register("G", [tags("other")])
    turns.run()
    assert filters.count == 0


def test_the_newer_of_two_filters_being_compiled_wins() -> None:
    turns = Turns()
    clock = FakeClock()
    filters = table(clock, compiler=Compiler(clock.now_ms, turns.append))
    filters.register("G", [sql(long_text("older"))])
    filters.register("G", [sql(long_text("newer"), version=2)])
    turns.run()
    assert expression(filters) == long_text("newer")


def test_a_filter_above_the_compilers_allowance_is_refused() -> None:
    filters = table()
    spend_all(filters.arriving.compiler)
    filters.register("G", [sql("refused = 1")])
    assert filters.count == 0
