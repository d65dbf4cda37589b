# SPDX-License-Identifier: Apache-2.0

from random import Random

import pytest
from tests.fuzz.cost import SHOWN, Cost, Worst
from tests.fuzz.decoders import fuzz_decoders
from tests.fuzz.mutate import mutated
from tests.fuzz.streams import FILE_TARGETS, corpus
from tests.fuzz.targets import ALLOWED, TARGETS

from cometmq.peers.paths import FUZZ_CORPUS

CORPUS = corpus()


@pytest.mark.parametrize("name", FILE_TARGETS)
def test_the_inputs_of_the_corpus_are_valid(name):
    assert name in TARGETS
    assert CORPUS[name]
    for data in CORPUS[name]:
        TARGETS[name](data)


def test_each_folder_of_the_corpus_is_fuzzed():
    fuzzed_live = {"control_port"}
    assert {path.name for path in FUZZ_CORPUS.iterdir()} == {*FILE_TARGETS, *fuzzed_live}


def test_a_run_prints_the_slowest_inputs(capsys):
    assert fuzz_decoders(inputs=len(TARGETS), seed=1, processes=1)
    assert "decoders: slowest inputs: " in (printed := capsys.readouterr().out)
    assert printed.count(" us per byte (") == SHOWN


@pytest.mark.parametrize("name", FILE_TARGETS)
def test_mutated_inputs_are_accepted_or_refused(name):
    random, refused = Random(name), 0
    for _ in range(200):
        try:
            TARGETS[name](mutated(random, CORPUS[name]))
        except ALLOWED:
            refused += 1
    assert refused < 200
    assert refused or name == "shown_body"


def test_the_worst_cost_is_that_of_most_time_per_byte():
    worst = Worst()
    worst.note(Cost.of("long", 0.01, 100_000))
    worst.note(Cost.of("short", 0.001, 1_000))
    worst.note(Cost.of("short", 0.0005, 1_000))
    worst.note(Cost.of("tiny", 0.0001, 1))
    assert [cost.name for cost in worst.costs()] == ["short", "tiny", "long"]
    assert str(worst).startswith("short 1.00 us per byte (1.0 ms for 1000 bytes); tiny 0.39 us")
