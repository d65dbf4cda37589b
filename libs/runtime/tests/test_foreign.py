# SPDX-License-Identifier: Apache-2.0
"""Keys of RocketMQ that mean safety end the start; others are kept, and have no effect."""

from typing import ClassVar

import msgspec
import pytest

from cometmq.remoting.errors import SettingsError
from cometmq.runtime.settings import load
from cometmq.runtime.settings.foreign import Foreign, refusals


class Example(msgspec.Struct, frozen=True, rename="camel"):
    FOREIGN: ClassVar = Foreign(
        {"threads": "there are none"},
        {
            **refusals(["guardEnabled"], "guards are not served", "build a wall"),
            **refusals(["guardSecret"], "secrets are not kept", "keep it", accepted=()),
            **refusals(["listEnabled"], "lists are open", "close it", accepted=("true",)),
        },
    )
    listen_port: int = 9876


def loaded(tmp_path, text, env=(), name="x.conf"):
    file = tmp_path / name
    file.write_text(text)
    return load(Example, prefix="X", file=file, env=dict(env))


@pytest.mark.parametrize(
    "text",
    ["guardEnabled=true", "guardEnabled= TRUE ", "guardEnabled=1", "guardEnabled: yes",
     "listEnabled=false", "guardEnable=true"],
)  # fmt: skip
def test_what_a_key_asks_for_is_refused_with_the_way_out(tmp_path, text):
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, f"listenPort=1\n{text}\n")
    assert "x.conf:2" in str(caught.value)
    assert any(word in str(caught.value) for word in ("build a wall", "close it", "guardEnabled?"))


@pytest.mark.parametrize("text", ["guardEnabled=false", "guardEnabled=", "listEnabled=True"])
def test_a_value_that_asks_for_nothing_is_kept_without_a_word(tmp_path, text):
    settings = loaded(tmp_path, f"{text}\n")
    assert settings.unknown.keys() == {text.partition("=")[0]}
    assert not settings.mistakes.places
    assert not settings.ineffective()


def test_variables_and_toml_are_refused_too(tmp_path):
    with pytest.raises(SettingsError, match="environment X_GUARD_ENABLED"):
        loaded(tmp_path, "", {"X_GUARD_ENABLED": "true"})
    with pytest.raises(SettingsError, match="build a wall"):
        loaded(tmp_path, "[a]\nguardEnabled = true\n", name="x.toml")


def test_a_change_at_run_time_is_refused(tmp_path):
    settings = loaded(tmp_path, "guardEnabled=false\n")
    with pytest.raises(SettingsError, match="build a wall"):
        settings.updated({"guardEnabled": "true"})
    assert settings.updated({"guardEnabled": "false"}).unknown == {"guardEnabled": "false"}


def test_secrets_are_not_shown(tmp_path):
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, "guardSecret=12345\n")
    assert "12345" not in str(caught.value)


def test_a_key_without_effect_is_named_with_its_reason(tmp_path):
    settings = loaded(tmp_path, "threads=8\ncolour=red\n")
    assert settings.ineffective() == {"threads": "there are none."}
    assert settings.mistakes.places.keys() == {"colour"}
    assert settings.has_known_key
