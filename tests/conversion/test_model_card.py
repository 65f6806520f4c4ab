"""The model card of an export."""

from pathlib import Path
from typing import Any

import yaml

from pamp_pipelines.conversion.job import ExportJob
from pamp_pipelines.conversion.licences import corpus_licences
from pamp_pipelines.conversion.model_card import write_model_card
from pamp_pipelines.lake.manifest import ArtifactRef, Manifest
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import Lake

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
    assert "the licence of the model is declared unknown" in warnings[0]


def test_licences_of_the_corpora(tmp_path: Path) -> None:
    """From the shards' manifests, of those that the checkpoint was trained on."""
    lake = Lake(tmp_path / "lake")
    for corpus, licence in (("sonnets", "CC0-1.0"), ("web", "unknown"), ("other", "MIT")):
        final = lake.shards_dir(corpus, corpus[0] * 64)
        with publish(
            final, kind="tokenized_shards", id=corpus[0] * 64, declaration={"corpora": {corpus: {"licence": licence}}}
        ):
            pass
    corpora = {"sonnets": 0.5, "web": 0.25, "gone": 0.25}
    shards = tuple(ArtifactRef(kind="tokenized_shards", id=c * 64, content="x") for c in "swg")
    record = Manifest(
        kind="checkpoint",
        id="i",
        content="c",
        created="",
        inputs=shards,
        declaration={"training_config": {"c": {"corpora": corpora}}},
        producer={},
    )
    licences = corpus_licences(lake, record)
    assert licences == {"sonnets": "CC0-1.0", "web": "unknown", "gone": "unknown"}
    assert corpus_licences(lake, record.model_copy(update={"inputs": ()})) == {}, "weights that were not trained here"
    declaration = record.declaration | {"corpora": {name: {"licence": text} for name, text in licences.items()}}
    declaration |= {"model": {"m": {"licence": "MIT"}}}
    _, text, warnings = card(tmp_path, declaration=declaration)
    assert "`sonnets`, weight 0.5, licence: CC0-1.0" in text
    assert "licence of corpus gone and of corpus web is declared unknown" in warnings[0]


def test_plain_export(tmp_path: Path) -> None:
    head, text, warnings = card(tmp_path)
    assert "license" not in head
    assert "that of the model it was made from" in text
    assert warnings == []
