"""What a machine without Megatron is told."""

import sys

import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.training import requirements


def test_nothing_is_said_where_megatron_is() -> None:
    requirements.require_megatron("Training")


@pytest.mark.parametrize(("platform", "advice"), [("darwin", "a Linux container"), ("linux", "make setup")])
def test_without_megatron_the_advice_fits_the_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, advice: str
) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(InputError, match=f"Training needs megatron-core.*{advice}"):
        requirements.require_megatron("Training")
