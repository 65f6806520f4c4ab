"""A manifest.json that another program wrote is refused in one sentence."""

from pathlib import Path

import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import read_manifest


def test_a_foreign_manifest(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.write_text('{"name": "app", "short_name": "a", "icons": [], "start_url": "/", "display": "full"}')
    with pytest.raises(InputError) as caught:
        read_manifest(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: not a manifest of pamp_pipelines (")
    assert "more)" in message
    assert "pydantic" not in message
    assert "\n" not in message
