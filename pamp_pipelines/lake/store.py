"""Where each kind of artifact lies below the lake's root, and the keys of checkpoints."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.artifact import Artifact, Verify, read_artifact
from pamp_pipelines.lake.manifest import MANIFEST

_ID_CHARACTERS = 12

LeftOut = dict[str, str]
"""What of a lake cannot be used, by path: why."""


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
        numbers = {int(d.name[1:]) for d in parent.glob("v[0-9]*") if d.name[1:].isdecimal()}
        return sorted(n for n in numbers if self.version_dir(model, training_config, n).is_dir())

    def kept_record(self, key: CheckpointKey) -> Path:
        """Manifest of a kept checkpoint."""
        return self.version_dir(key.model, key.training_config, key.version) / "kept" / f"{key.step:07d}.json"

    def kept_checkpoints(self, left_out: LeftOut | None = None) -> Iterator[CheckpointKey]:
        """Keys of all kept checkpoints in the lake, sorted.

        Args:
            left_out: gets the files among the records that are none by their name, or that lead nowhere.
        """
        found = []
        for record in (self.root / "runs").glob("*/*/v*/kept/*.json"):
            if record.name.startswith("."):
                continue  # beside a record, not one
            key = self._key_of(record)
            if key is not None and record.is_file():
                found.append(key)
            elif left_out is not None:
                left_out[str(record)] = (
                    "no record of a kept checkpoint: those are files runs/*/*/v0001/kept/0000500.json"
                )
        yield from sorted(found)

    def _key_of(self, record: Path) -> CheckpointKey | None:
        """The checkpoint that a file records; None for one that is not where and named as ``kept_record`` has it."""
        version, config, model = record.parts[-3], record.parts[-4], record.parts[-5]
        try:
            key = CheckpointKey.parse(f"{model}/{config}/{version}/{record.stem}")
        except InputError:
            return None
        return key if self.kept_record(key) == record else None

    def export_dir(self, key: CheckpointKey) -> Path:
        return self.root / "exports" / str(key)

    def scores_dir(self, key: CheckpointKey, evaluation: str) -> Path:
        return self.root / "scores" / str(key) / evaluation

    def recorded_file(self, asset: str, partition: str | None) -> Path:
        """What Dagster was last told of a partition; ``lake.recorded`` reads it."""
        path = self.root / "recorded" / asset / (partition or "all").replace("|", "/")
        return path.with_name(f"{path.name}.recorded.json")  # no partition's name makes it a manifest.json

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

    def artifacts_below(
        self, folder: Path, kind: str, left_out: LeftOut | None = None, verify: Verify = "none"
    ) -> Iterator[Artifact]:
        """Those of them in one folder of the lake.

        Args:
            folder: anywhere in the lake.
            kind: of the artifacts.
            left_out: gets those that are not readable, are no artifacts of that kind, or fail to verify.
            verify: how their files are compared with the manifest.
        """
        for manifest in sorted(folder.rglob(MANIFEST)):
            if any(part.startswith(".") for part in manifest.relative_to(self.root).parts):
                continue  # being built
            try:
                artifact = read_artifact(manifest.parent, verify=verify)
                if artifact.kind == kind:
                    yield artifact
                    continue
                reason = f"{manifest}: is of a {artifact.kind}, where {kind} is kept"
            except (InputError, VerificationFailed) as error:
                reason = str(error)
            if left_out is not None:
                left_out[str(manifest)] = reason
