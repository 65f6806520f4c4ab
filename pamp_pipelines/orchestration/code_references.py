"""From an asset in the UI to the YAML files behind it."""

import warnings
from collections.abc import Iterator
from typing import Any

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog

_BETA = "Class `(LocalFileCodeReference|CodeReferencesMetadataValue)` is currently in beta"
_FOLDERS = {"corpus": "corpora", "model": "models", "training_config": "training_configs", "evaluation": "evaluations"}


def code_references(catalog: Catalog, *kinds: str, name: str | None = None) -> dict[str, Any]:
    """Metadata with a link to each declaration of some kinds, or to the one of a name.

    The first line below the comments is linked, where the declaration begins. A named use of a beta API: the links are
    metadata only, and nothing else can carry them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _BETA, dg.BetaWarning)
        references = [
            dg.LocalFileCodeReference(file_path=path, line_number=line, label=label)
            for path, line, label in _places(catalog, kinds, name)
        ]
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=references)}


def _places(catalog: Catalog, kinds: tuple[str, ...], name: str | None) -> Iterator[tuple[str, int, str]]:
    for (kind, declared), document in sorted(catalog.documents.items()):
        if kind in kinds and name in (None, declared):
            line = min(document.lines.values(), default=1)
            yield str(catalog.file_of(kind, declared)), line, f"{_FOLDERS[kind]}/{declared}.yaml"
