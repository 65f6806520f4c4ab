"""The model card of an export."""

from pathlib import Path
from typing import Any

import yaml

from pamp_pipelines.conversion.job import ExportJob
from pamp_pipelines.conversion.model_card import write_model_card
from pamp_pipelines.lake.manifest import ArtifactRef

STATS = {"architecture": "llama", "parameters": 1234567, "dtypes": ["bfloat16"]}


def card(tmp_path: Path, **fields: Any) -> tuple[dict[str, Any], str, list[str]]:
    job = ExportJob(name="m/c/v0001/0000500", id="x", output=tmp_path, checkpoint=tmp_path, template=tmp_path, **fields)
    warnings = write_model_card(job, STATS, tmp_path)
    _, head, text = (tmp_path / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), text, warnings


def test_declared_model(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# The base model\n")
    declaration = {
        "model": {"m": {"licence": "Apache-2.0"}},
        "training_config": {"c": {"description": "More Shakespeare.", "corpora": {"sonnets": 0.25}}},
    }
    ref = ArtifactRef(kind="checkpoint", id="abc", content="def")
    head, text, warnings = card(tmp_path, declaration=declaration, inputs=(ref,))
    assert head == {"library_name": "transformers", "pipeline_tag": "text-generation", "license": "apache-2.0"}
    for words in (
        "# m/c/v0001/0000500",
        "1,234,567 parameters",
        "`abc`",
        "More Shakespeare.",
        "`sonnets`, weight 0.25",
    ):
        assert words in text
    assert (tmp_path / "README.base.md").read_text() == "# The base model\n"
    assert "README.base.md" in text
    assert warnings == []


def test_unknown_licence_warns(tmp_path: Path) -> None:
    head, text, warnings = card(tmp_path, declaration={"model": {"m": {"licence": "unknown"}}})
    assert "license" not in head
    assert "Licence: unknown" in text
    assert "licence is declared unknown" in warnings[0]


def test_plain_export(tmp_path: Path) -> None:
    head, text, warnings = card(tmp_path)
    assert "license" not in head
    assert "that of the model it was made from" in text
    assert warnings == []
