"""Licences of the text that a checkpoint was trained on, from the manifests of its shards: they never change."""

from __future__ import annotations

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import read_manifest
from pamp_pipelines.lake.manifest import MANIFEST, Manifest
from pamp_pipelines.lake.store import Lake

UNKNOWN = "unknown"
_SHARDS = "tokenized_shards"


def corpus_licences(lake: Lake, record: Manifest) -> dict[str, str]:
    """Licence by corpus; ``unknown`` where the shards are gone, nothing for a checkpoint that saw none.

    Args:
        lake: where the shards are.
        record: of a kept checkpoint.
    """
    shards = [ref.id for ref in record.inputs if ref.kind == _SHARDS]
    configs = record.declaration.get("training_config", {}).values()
    corpora = sorted({corpus for config in configs for corpus in config.get("corpora", {})}) if shards else []
    return {corpus: _licence(lake, corpus, shards) for corpus in corpora}


def _licence(lake: Lake, corpus: str, shards: list[str]) -> str:
    for id in shards:
        try:
            manifest = read_manifest(lake.shards_dir(corpus, id) / MANIFEST)
        except InputError:
            continue
        if manifest.id == id:
            return str(manifest.declaration.get("corpora", {}).get(corpus, {}).get("licence", UNKNOWN))
    return UNKNOWN
