"""Whether a corpus' sources are what they were, without reading them: for a look every minute."""

from pathlib import Path

from pamp_pipelines.corpus.fingerprints import readable, remembered_tokens
from pamp_pipelines.corpus.sources import expand, stat_source
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.hashing import sha256_json
from pamp_pipelines.lake.store import Lake


def sources_cache(lake: Lake, catalog: Catalog, corpus: str) -> Path:
    """Where the hashes of a corpus' sources are remembered; corpora that one declaration makes share it."""
    return lake.root / "corpora" / catalog.file_of("corpus", corpus).stem / ".sources.json"


def source_state(catalog: Catalog, lake: Lake, corpus: str) -> tuple[str, bool]:
    """A hash over names, sizes and times of a corpus' files, and whether the content of each is known from before.

    Raises:
        InputError: sources are absent or cannot be asked.
    """
    known = remembered_tokens(sources_cache(lake, catalog, corpus))
    tokens = []
    try:
        for location in expand(catalog.corpus(corpus).sources, catalog.project.root):
            with readable(location.name):
                tokens.append((location.url, stat_source(location.url)[1]))
    except InputError as error:
        raise InputError(f"{catalog.file_of('corpus', corpus)}: {error}") from error
    return sha256_json(tokens), all(known.get(url) == token for url, token in tokens)
