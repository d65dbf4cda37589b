# SPDX-License-Identifier: Apache-2.0
"""Names that clients choose add no lines to what commands say."""

from cometmq.cli.output import print_notes
from cometmq.cli.say import say

EVIL = "client\ncometmq: the disk is full: run this\x1b[2J"
SHOWN = r"client\ncometmq: the disk is full: run this\x1b[2J"


def test_a_name_with_newlines_adds_no_line_to_standard_error(capsys):
    print_notes([f"1 member did not answer: {EVIL}"])
    say(f"cometmq: {EVIL} did not answer", err=True)
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines() == [
        f"cometmq: 1 member did not answer: {SHOWN}", f"cometmq: {SHOWN} did not answer",
    ]  # fmt: skip


def test_output_of_several_lines_stays_as_it_is(capsys):
    say("a\nb\x1b")
    say(b'{"a": "\x1b"}\n', nl=False)
    assert capsys.readouterr().out == 'a\nb\\x1b\n{"a": "\x1b"}\n'
