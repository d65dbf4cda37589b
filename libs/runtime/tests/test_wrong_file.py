# SPDX-License-Identifier: Apache-2.0
"""A program refuses a settings file of a different program, or of none."""

from typing import ClassVar

import msgspec
import pytest

from cometmq.remoting.errors import SettingsError
from cometmq.runtime.settings import load
from cometmq.runtime.settings.foreign import Foreign
from cometmq.runtime.settings.mistakes import refuse_wrong_file


class Example(msgspec.Struct, frozen=True, rename="camel"):
    FOREIGN: ClassVar = Foreign({"serverWorkerThreads": "there are no threads"})

    listen_port: int = 9876
    cluster_test: bool = False


def check(tmp_path, text, name="namesrv", **sources):
    file = tmp_path / "some.conf"
    file.write_text(text)
    loaded = load(Example, prefix="X", file=file, env={}, **sources)
    refuse_wrong_file(name, loaded, file)
    return loaded.value


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("", 9876),
        ("# only a comment\n", 9876),
        ("listenPort=1\n", 1),
        ("colour=red\nlistenPort=1", 1),
    ],
)
def test_a_file_with_a_known_key_or_without_any_is_accepted(tmp_path, text, port):
    assert check(tmp_path, text) == Example(listen_port=port)


def test_an_option_does_not_hide_that_the_file_has_its_key(tmp_path):
    accepted = check(tmp_path, "colour=red\nlistenPort=1\n", cli={"listenPort": "5"})
    assert accepted == Example(listen_port=5)


def test_a_key_of_rocketmq_without_effect_counts_as_known(tmp_path):
    assert check(tmp_path, "serverWorkerThreads=8\n") == Example()


def test_a_file_without_a_known_key_is_refused_with_similar_ones(tmp_path):
    with pytest.raises(SettingsError) as caught:
        check(tmp_path, "listen_prt=1\nclustrTest=x\n")
    assert str(caught.value) == (
        f"{tmp_path / 'some.conf'} has no setting of cometmq namesrv, only listen_prt (did you mean"
        " listenPort?), clustrTest (did you mean clusterTest?); give the path of a settings file,"
        " or see the settings with cometmq namesrv --print-settings"
    )


def test_prose_is_refused_with_its_line_and_the_form_of_a_setting(tmp_path):
    with pytest.raises(SettingsError) as caught:
        check(tmp_path, "# a comment\n\nsome shopping list\n")
    assert str(caught.value) == (
        f"{tmp_path / 'some.conf'} has no setting of cometmq namesrv, only 'some shopping list' in"
        " line 3 (a setting is NAME=VALUE, and a comment begins with #); give the path of a"
        " settings file, or see the settings with cometmq namesrv --print-settings"
    )


def test_a_long_wrong_file_is_shown_in_part(tmp_path):
    text = "".join(f"key{number}=1\n" for number in range(9))
    with pytest.raises(SettingsError, match=r"key3, key4 and 4 more;"):
        check(tmp_path, text)


def test_a_file_of_another_program_is_refused_even_if_it_has_known_keys(tmp_path):
    file = tmp_path / "some.conf"
    advice = f"run cometmq broker -c {file}, or give namesrv a file of its own"
    for text, keys in (
        ("brokerName=a\n", "brokerName is no setting"),
        ("brokerName=a\nbrokerId=0\n", "brokerId, brokerName are no settings"),
    ):
        with pytest.raises(SettingsError) as caught:
            check(tmp_path, f"listenPort=1\n{text}")
        assert str(caught.value) == (
            f"{file} is a settings file of cometmq broker: {keys} of cometmq namesrv; {advice}"
        )
