# SPDX-License-Identifier: Apache-2.0
"""Tests the ratios, verdicts and tables of benchmark results."""

import re

import page
import pytest
import report
from macro.workloads import Target

FAST = {"messages_per_s": 100_000.0, "p99_us": 2_000.0}
SLOW = {"messages_per_s": 40_000.0, "p99_us": 8_000.0}


def result_of(comet: dict[str, float], java: dict[str, float]) -> report.Result:
    samples = {"send-64x1": {"comet": [comet], "java": [java]}}
    return report.make_result(samples, {"1x1": 1.0}, options={}, measured_at="2026-01-01")


@pytest.mark.parametrize(
    ("target", "comet", "java", "is_met"),
    [
        (Target("messages_per_s", 1.5), 150, 100, True),
        (Target("messages_per_s", 1.5), 149, 100, False),
        (Target("p99_us", 0.5), 50, 100, True),
        (Target("p99_us", 0.5), 51, 100, False),
        (Target("p99_us", 0.5), 50, None, None),
        (Target("start_s", 1.0, of_java=False), 0.9, None, True),
        (Target("start_s", 1.0, of_java=False), 1.1, 9, False),
    ],
)
def test_a_target_is_a_bound_on_the_better_side(target, comet, java, is_met):
    assert target.is_met(comet=comet, java=java) is is_met


def test_medians_of_the_rounds_make_the_ratio():
    rounds = [{"messages_per_s": rate} for rate in (1.0, 200.0, 300.0)]
    samples = {"send-1k": {"comet": rounds, "java": [{"messages_per_s": 100.0}]}}
    assert [row.ratio for row in report.rows(samples)] == [2.0]


@pytest.mark.parametrize("beside", ["watched", "parent"])
def test_a_console_or_the_parent_is_compared_within_each_round(beside):
    rates = [100.0, 50.0, 200.0]
    plain = [{"messages_per_s": rate} for rate in rates]
    watched = [
        {"messages_per_s": rate * share} for rate, share in zip(rates, (0.5, 1, 0.8), strict=True)
    ]
    samples = {"send-8x32": {"comet": plain, beside: watched}}
    (row,) = report.rows(samples)
    assert (row.comet, row.java, row.ratio) == (100.0, 50.0, 1.25)


def test_the_table_says_which_targets_are_met_and_which_are_missed():
    met = report.table(result_of(FAST, SLOW))
    assert met.count(" met") == 2
    assert "MISSED" not in met
    missed = report.table(result_of(SLOW, FAST))
    assert missed.count("MISSED") == 2
    assert len(report.missed(result_of(SLOW, FAST))) == 2


def test_one_server_alone_is_shown_without_a_verdict():
    samples = {"send-64x1": {"comet": [FAST]}}
    result = report.make_result(samples, {}, options={}, measured_at="2026-01-01")
    assert "not measured" in report.table(result)
    assert report.missed(result) == []


def test_only_a_ratio_worse_by_a_tenth_is_a_regression():
    baseline = result_of(FAST, SLOW)
    slightly = {name: value * 0.95 for name, value in FAST.items()}
    assert report.regressions(result_of(slightly, SLOW), baseline) == []
    much = {"messages_per_s": 80_000.0, "p99_us": 2_500.0}
    assert len(report.regressions(result_of(much, SLOW), baseline)) == 2


def test_a_stored_result_is_read_back(tmp_path):
    result = result_of(FAST, SLOW)
    report.write(result, tmp_path)
    assert report.load(tmp_path / "result.json") == result
    assert (tmp_path / "result.png").stat().st_size > 1000


def test_a_run_of_some_workloads_keeps_the_baseline_of_the_others(tmp_path):
    path = tmp_path / "baseline.json"
    report.write_baseline(result_of(FAST, SLOW), path)
    samples = {"pull-sql": {"comet": [SLOW], "java": [FAST]}}
    options = {"rounds": 1, "seconds": 2.0}
    newer = report.make_result(samples, {}, options=options, measured_at="2026-02-02")

    whole = report.write_baseline(newer, path)

    assert report.load(path) == whole
    assert set(whole["samples"]) == {"send-64x1", "pull-sql"}
    assert whole["ratios"]["pull-sql.messages_per_s"] == 0.4
    assert whole["ratios"]["send-64x1.messages_per_s"] == 2.5


START = "<!-- the table of make bench: begin -->"
END = "<!-- the table of make bench: end -->"


def test_the_page_gets_the_table_between_its_marks(tmp_path):
    path, readme = tmp_path / "performance.md", tmp_path / "README.md"
    old = "| old |"
    for page_of_table in (path, readme):
        page_of_table.write_text(f"before\n{START}\n{old}\n{END}\nafter\n")
    samples = {"send-64x1": {"comet": [SLOW], "java": [FAST]}}
    options = {"rounds": 3, "seconds": 5.0}
    result = report.make_result(samples, {}, options=options, measured_at="2026-02-02T00:00:00")

    page.publish_table(result, path, readme)

    text = path.read_text()
    assert old not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| 40,000 · 100,000 (0.40 x, missed >= 2.2x, behind Java) |" in text
    assert "3 rounds of 5 s" in text
    assert "| p99 [us] | 8,000 | 2,000 | 4.00 | Java |" in readme.read_text()


def test_a_workload_that_was_disturbed_says_so_on_the_page():
    options = {"rounds": 1, "seconds": 2.0}
    quiet, noisy = ({**FAST, "others_cpus": cpus} for cpus in (0.1, 1.2))
    for sample, is_told in ((quiet, False), (noisy, True)):
        samples = {"send-8x32": {"comet": [sample], "java": [SLOW]}}
        result = report.make_result(samples, {}, options=options, measured_at="2026-02-02")
        assert ("Not conclusive" in page.markdown(result)) is is_told
        assert ("used by other programs" in page.markdown(result)) is is_told
        assert ("Not conclusive" in page.summary(result)) is is_told


def shown(sample: dict[str, list[dict[str, float]]], workload: str) -> report.Result:
    options = {"rounds": 1, "seconds": 2.0, "serialization": "json"}
    return report.make_result({workload: sample}, {}, options=options, measured_at="2026-02-02")


def test_the_readme_has_the_other_servers_and_treats_small_differences_as_equal():
    close = {**FAST, "messages_per_s": FAST["messages_per_s"] * 1.02}
    sample = {"comet": [close], "java": [FAST], "redis": [SLOW], "nats": [FAST]}
    text = page.summary(shown(sample, "send-8x32"))
    assert "| ratio | behind | Redis | NATS |" in text
    assert "| 102,000 | 100,000 | 1.02 |  | 40,000 | 100,000 |" in text


def test_the_greatest_loss_is_in_the_readme_and_all_are_on_the_page():
    slow = {**FAST, "p99_us": FAST["p99_us"] * 2, "p999_us": 1_010.0}
    fast = {**FAST, "p999_us": 960.0}
    sample = {"comet": [slow], "java": [fast], "redis": [SLOW], "nats": [fast]}
    result = shown(sample, "send-64x1")
    text = page.summary(result)
    assert re.search(r"\| p99 \[us\] .* \| 2.00 \| Java, NATS \|", text), text
    assert text.count("send 128 B, 64 connections x 1 in flight") == 1
    assert "worse in 2." in text
    assert "NATS is ahead in 2 of" in text
    assert "Redis is ahead in 0 of" in text
    assert "JSON headers, without accounts and TLS" in text
    whole = page.markdown(result)
    assert re.search(r"\| 4,000 · 2,000 · 8,000 · 2,000 \(.*behind Java, NATS\) \|", whole)
    assert "| 1,010 · 960 · 960 (behind Java, NATS) |" in whole


def test_a_configuration_is_shown_beside_its_part_of_the_plain_rate():
    accounts = {"messages_per_s": 50_000.0, "share_of_plain": 0.5}
    text = page.markdown(shown({"comet": [accounts], "java": [FAST]}, "send-8x32-tls"))
    assert re.search(r"\| TLS: send 128 B, .* \| 50,000 · 100,000 \(0.50 x, .*Java\) \|", text)
    assert "of the plain rate 50 %" in text


def test_a_page_without_marks_is_named(tmp_path):
    path = tmp_path / "performance.md"
    path.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        page.replace(path, "make bench", "| table |")
