# SPDX-License-Identifier: Apache-2.0
"""Keys at the beginning of lines, and templates."""

import re

import pytest

from cometmq.cli.verbs.templates import expanded


def test_the_key_is_split_from_each_line(pipe, ask, topic):
    sent = pipe("produce", topic, "-K", "::", stdin=b"k1::one\nk2::two::three\n")
    assert sent.status == 0, sent.err
    lines = ask("consume", topic, "--last", 2, "--json").lines
    assert sorted((it["keys"], it["body"]) for it in lines) == [
        (["k1"], "one"),
        (["k2"], "two::three"),
    ]


@pytest.mark.parametrize(
    ("line", "why"), [(b"no key\n", "has no ':' between"), (b"\xff:x\n", "its key is not UTF-8")]
)
def test_a_line_without_a_key_is_refused_with_its_number(pipe, topic, line, why):
    refused = pipe("produce", topic, "-K", ":", "--in-flight", 1, stdin=b"a:1\n" + line)
    assert refused.status == 1
    assert f"line 2: {why}" in refused.err
    assert "1 message stored before the error" in refused.err


def test_templates_are_replaced_in_bodies_keys_and_properties(ask, topic):
    sent = ask(
        *("produce", topic, '{"n": {{Count}}}', "--template", "--count", 3),
        *("-k", "order-{{ .Count }}", "-p", "at={{TimeStamp}}"),
    )
    assert sent.status == 0, sent.err
    lines = sorted(ask("consume", topic, "--last", 3, "--json").lines, key=lambda it: it["body"])
    assert [it["body"] for it in lines] == ['{"n": 1}', '{"n": 2}', '{"n": 3}']
    assert [it["keys"] for it in lines] == [["order-1"], ["order-2"], ["order-3"]]
    assert all(re.fullmatch(r"20\d\d-.*Z", it["properties"]["at"]) for it in lines)


def test_without_the_option_braces_are_sent_as_they_are(ask, topic):
    assert ask("produce", topic, "{{Count}} {{x}}").status == 0
    assert ask("consume", topic, "--last", 1).out == "{{Count}} {{x}}\n"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "{{Cuont}}",
            "is no template: give Count, Unix, TimeStamp, ID, Random; did you mean Count",
        ),
        ("{{Cou nt}}", "is no template"),
        ("{{=Count}}", "is no template"),
        ("{{}}", "is no template"),
        ("{{Random 5 20", "has no }} at its end"),
        *(
            (
                f"{{{{{call}}}}}",
                "only Random takes numbers, a length or the shortest and the longest",
            )
            for call in [
                *("Count 5", "Unix 5", "TimeStamp 1 2", "ID 5", "Count(5)", "Count | 5"),
                *("Random 1 2 3", "Random 9999999", "Random 20 5", "Random 5 0", "Random 0 5"),
                *("Random 0", "Random 0 0", "Random -5", "Random a", "Random 1.5", "Random 5,20"),
                *('Random "5"', "Random \u0661", "Random 1e3", f"Random {'9' * 5_000}"),
            ]
        ),
    ],
)
def test_a_wrong_template_is_refused_before_anything_is_sent(call, body, why):
    refused = call("produce", "T", "-k", body, "x", "--template", "-n", "127.0.0.1:1")
    assert (refused.status, refused.out) == (2, "")
    assert why in refused.err
    assert len(refused.err) < 300


def test_random_texts_have_the_lengths_that_were_asked_for():
    assert re.fullmatch(rb"\w{10}", expanded(b"{{Random}}", 1))
    assert {len(expanded(b"{{Random 3 5}}", 1)) for _ in range(200)} == {3, 4, 5}
    assert {expanded(b"{{ Random\t1  1 }}", 1).isalnum() for _ in range(9)} == {True}
    assert expanded(b"{{ID}}", 1) != expanded(b"{{ID}}", 1)


def test_further_braces_around_a_template_stay():
    assert expanded(b'{"a": {"b": {{Count}}}} {{{ .Count }}} }} {', 7) == (
        b'{"a": {"b": 7}} {7} }} {'
    )
