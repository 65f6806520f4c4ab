"""What a lake holds for Dagster: every artifact of every partition, in the order in which Dagster heard of them."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.evaluation.export_cache import evicted_export
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.recorded import Recorded, read_recorded
from pamp_pipelines.lake.store import CheckpointKey, Lake, LeftOut
from pamp_pipelines.orchestration.chain import CHAIN, Selection, select
from pamp_pipelines.orchestration.damage import leaving_out
from pamp_pipelines.orchestration.partitions import multi_key, shard_pairs
from pamp_pipelines.orchestration.recording import READS
from pamp_pipelines.orchestration.uptodate import wanted


@dataclass(frozen=True)
class Entry:
    """An artifact of a partition.

    Attributes:
        asset: key, with slashes.
        partition: key; None for an asset without partitions.
        artifact: readable, with all of its files.
        at: Unix time in seconds at which Dagster was told of it, else at which it was made.
        recorded: what was written down then, for the one that the partition showed last.
        in_force: nothing was written down, and it is the artifact that a run would find now.
    """

    asset: str
    partition: str | None
    artifact: Artifact
    at: float
    recorded: Recorded | None = None
    in_force: bool = False

    @property
    def order(self) -> tuple[float, int, bool]:
        """By time; what was made within a second, by the chain."""
        return self.at, CHAIN.index(self.asset.partition("/")[0]), self.recorded is not None or self.in_force


class Survey:
    """Reads a lake once.

    Args:
        catalog: the declarations in force, which have the static partitions.
        lake: what is read.
        checkpoints: keys of the checkpoints that are partitions.
        left_out: gets what cannot be shown, and why.
    """

    def __init__(self, catalog: Catalog, lake: Lake, checkpoints: Sequence[str], left_out: LeftOut) -> None:
        self._catalog, self._lake, self._checkpoints, self._left_out = catalog, lake, checkpoints, left_out
        self._below = cache(self._read_below)

    def partitions(self) -> Iterator[list[Entry]]:
        """The artifacts of each partition that has any, upstream first; what the partition shows comes last."""
        for asset in (asset for stage in CHAIN for asset in select(self._catalog, stage).assets):
            recorded = {partition: self._recorded(asset, partition) for partition in self._keys(asset)}
            shown = {one.id for one in recorded.values() if one is not None}
            for partition, one in recorded.items():
                found = self._artifacts(asset, partition)
                if asset == "tokenized_shards" and one is None:
                    found = self._of_model(str(partition), found, shown)
                if entries := sorted(self._entries(asset, partition, found, one), key=lambda entry: entry.order):
                    yield entries

    def _keys(self, asset: str) -> list[str | None]:
        """All cells of a grid, also of broken declarations: one that nothing declares any more may have been filled."""
        names = self._catalog.names
        match asset.partition("/")[0]:
            case "raw_corpus":
                return list(names("corpus"))
            case "tokenized_shards":
                return [multi_key(corpus=c, model=m) for c in names("corpus") for m in names("model")]
            case "megatron_checkpoint":
                return list(names("model"))
            case "pretrained_checkpoint":
                return [multi_key(model=m, training_config=c) for m in names("model") for c in names("training_config")]
            case "leaderboard":
                return [None]
            case _:
                return list(self._checkpoints)

    def _recorded(self, asset: str, partition: str | None) -> Recorded | None:
        with leaving_out(self._left_out, self._lake.recorded_file(asset, partition)):
            return read_recorded(self._lake, asset, partition)
        return None

    def _artifacts(self, asset: str, partition: str | None) -> list[Artifact]:
        stage, _, evaluation = asset.partition("/")
        key = partition or ""
        match stage:
            case "raw_corpus":
                return self._below(f"corpora/{key}", stage)
            case "tokenized_shards":
                return self._below(f"shards/{key.partition('|')[0]}", stage)
            case "megatron_checkpoint":
                return self._below(f"checkpoints/{key}", stage)
            case "pretrained_checkpoint":
                return self._below(f"runs/{key.replace('|', '/')}", stage)
            case "hf_export":
                return [*self._below(f"exports/{key}", stage), *self._evicted(key)]
            case "eval_scores":
                return self._below(f"scores/{key}/{evaluation}", stage)
            case _:
                return self._below("reports", stage)

    def _read_below(self, folder: str, kind: str) -> list[Artifact]:
        with leaving_out(self._left_out, self._lake.root / folder):
            return list(self._lake.artifacts_below(self._lake.root / folder, kind, self._left_out, "size"))
        return []

    def _evicted(self, key: str) -> list[Artifact]:
        export = self._lake.export_dir(CheckpointKey.parse(key))
        with leaving_out(self._left_out, f"the record of the evicted export {export}"):
            return [evicted] if (evicted := evicted_export(export)) is not None else []
        return []

    def _of_model(self, partition: str, found: list[Artifact], shown: set[str]) -> list[Artifact]:
        """Of shards, which know no model, those that this one reads and that no other is known to have shown."""
        corpus, model = partition.split("|")
        if (corpus, model) not in shard_pairs(self._catalog):
            return []
        in_force = self._in_force("tokenized_shards", partition)
        return [artifact for artifact in found if artifact.id == in_force and artifact.id not in shown]

    def _entries(
        self, asset: str, partition: str | None, found: list[Artifact], recorded: Recorded | None
    ) -> Iterator[Entry]:
        """The artifact that was shown last, or else the one in force, gets the time at which it was."""
        made = {}
        for artifact in found:
            with leaving_out(self._left_out, artifact.path):
                made[artifact.id, artifact.content] = _time(artifact), artifact
        last = (recorded.id, recorded.content) if recorded else None
        is_known = last in made
        in_force = None
        if not is_known and asset in READS and made:
            in_force = self._in_force(asset, partition or "")
        newest = max((at for at, _ in made.values()), default=0.0)
        for key, (at, artifact) in made.items():
            if recorded is not None and key == last:
                yield Entry(asset, partition, artifact, max(at, recorded.at), recorded)
            elif artifact.id == in_force:
                yield Entry(asset, partition, artifact, newest, in_force=True)
            else:
                yield Entry(asset, partition, artifact, at)

    def _in_force(self, asset: str, partition: str) -> str | None:
        """Id of the artifact that a run would make now; None when its inputs are not there or not readable."""
        try:
            return wanted(self._catalog, self._lake, Selection(asset), partition)[0][1]
        except Exception:  # of a damaged input, which is named where it is read itself
            return None


def _time(artifact: Artifact) -> float:
    return datetime.datetime.fromisoformat(artifact.manifest.created).timestamp()
