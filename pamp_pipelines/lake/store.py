"""Where each kind of artifact lies below the lake's root, and the keys of checkpoints."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import Artifact, read_artifact
from pamp_pipelines.lake.manifest import MANIFEST

_ID_CHARACTERS = 12


@dataclass(frozen=True, order=True)
class CheckpointKey:
    """Partition key of a kept checkpoint: ``model/training_config/v0001/0000500``."""

    model: str
    training_config: str
    version: int
    step: int

    def __str__(self) -> str:
        return f"{self.model}/{self.training_config}/v{self.version:04d}/{self.step:07d}"

    @classmethod
    def parse(cls, key: str) -> "CheckpointKey":
        """Raises InputError for a key of another form."""
        match = re.fullmatch(r"([^/|]+)/([^/|]+)/v([0-9]{4,18})/([0-9]{7,18})", key)
        if not match:
            raise InputError(f"{key!r} is no checkpoint key; it has the form model/training_config/v0001/0000500")
        return cls(match[1], match[2], int(match[3]), int(match[4]))


@dataclass(frozen=True)
class Lake:
    """Paths below one root."""

    root: Path

    def corpus_dir(self, corpus: str, id: str) -> Path:
        return self.root / "corpora" / corpus / id[:_ID_CHARACTERS]

    def shards_dir(self, corpus: str, id: str) -> Path:
        return self.root / "shards" / corpus / id[:_ID_CHARACTERS]

    def checkpoint_dir(self, model: str, id: str) -> Path:
        """The converted (or, from scratch, the declared) model."""
        return self.root / "checkpoints" / model / id[:_ID_CHARACTERS]

    def versions_dir(self, model: str, training_config: str) -> Path:
        return self.root / "runs" / model / training_config

    def version_dir(self, model: str, training_config: str, version: int) -> Path:
        return self.versions_dir(model, training_config) / f"v{version:04d}"

    def versions(self, model: str, training_config: str) -> list[int]:
        """Existing versions, oldest first."""
        parent = self.versions_dir(model, training_config)
        return sorted(int(d.name[1:]) for d in parent.glob("v[0-9]*") if d.is_dir() and d.name[1:].isdecimal())

    def kept_record(self, key: CheckpointKey) -> Path:
        """Manifest of a kept checkpoint."""
        return self.version_dir(key.model, key.training_config, key.version) / "kept" / f"{key.step:07d}.json"

    def kept_checkpoints(self) -> Iterator[CheckpointKey]:
        """Keys of all kept checkpoints in the lake, sorted."""
        found = []
        for record in (self.root / "runs").glob("*/*/v*/kept/*.json"):
            version, config, model = record.parts[-3], record.parts[-4], record.parts[-5]
            if version[1:].isdecimal() and record.stem.isdecimal():
                found.append(CheckpointKey(model, config, int(version[1:]), int(record.stem)))
        yield from sorted(found)

    def export_dir(self, key: CheckpointKey) -> Path:
        return self.root / "exports" / str(key)

    def scores_dir(self, key: CheckpointKey, evaluation: str) -> Path:
        return self.root / "scores" / str(key) / evaluation

    @property
    def reports_dir(self) -> Path:
        return self.root / "reports"

    def artifacts(self, kind: str) -> Iterator[Artifact]:
        """All finished artifacts of a kind, by path; unreadable ones are left out."""
        folder = {
            "raw_corpus": "corpora",
            "tokenized_shards": "shards",
            "megatron_checkpoint": "checkpoints",
            "pretrained_checkpoint": "runs",
            "hf_export": "exports",
            "eval_scores": "scores",
            "leaderboard": "reports",
        }[kind]
        yield from self.artifacts_below(self.root / folder, kind)

    def artifacts_below(self, folder: Path, kind: str) -> Iterator[Artifact]:
        """Those of them in one folder of the lake."""
        for manifest in sorted(folder.rglob(MANIFEST)):
            if any(part.startswith(".") for part in manifest.relative_to(self.root).parts):
                continue  # being built
            try:
                artifact = read_artifact(manifest.parent, verify="none")
            except InputError:
                continue
            if artifact.kind == kind:
                yield artifact
