"""The chain as data: its assets in order, and the keys of each."""

from dataclasses import dataclass

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.suggest import did_you_mean
from pamp_pipelines.errors import DeclarationError, InputError
from pamp_pipelines.lake.store import CheckpointKey, Lake, LeftOut
from pamp_pipelines.orchestration.checkpoints import showable
from pamp_pipelines.orchestration.partitions import multi_key, shard_pairs
from pamp_pipelines.training.kept import read_kept

CHAIN = (
    "raw_corpus",
    "tokenized_shards",
    "megatron_checkpoint",
    "pretrained_checkpoint",
    "hf_export",
    "eval_scores",
    "leaderboard",
)
"""Assets in the order in which a run of one needs the others; ``eval_scores`` stands for all evaluations."""


@dataclass(frozen=True)
class Selection:
    """One step of the chain: an asset, or the evaluations that share a run."""

    stage: str
    evaluations: tuple[str, ...] = ()

    @property
    def assets(self) -> tuple[str, ...]:
        """Asset keys, with slashes."""
        return tuple(f"{self.stage}/{e}" for e in self.evaluations) if self.stage == "eval_scores" else (self.stage,)


def select(catalog: Catalog, asset: str) -> Selection:
    """``eval_scores`` is every evaluation, ``eval_scores/math`` one of them.

    Raises:
        InputError: no such asset, or it is not one that can be materialised.
    """
    stage, _, evaluation = asset.partition("/")
    if asset == "checkpoint":
        raise InputError("`checkpoint` is reported by training runs; materialise `pretrained_checkpoint`.")
    if stage not in CHAIN or (evaluation and stage != "eval_scores"):
        raise InputError(f"there is no asset {asset!r}.{did_you_mean(asset, CHAIN)} Assets: {', '.join(CHAIN)}.")
    if evaluation:
        catalog.evaluation(evaluation)
        return Selection(stage, (evaluation,))
    return Selection(stage, tuple(catalog.names("evaluation")) if stage == "eval_scores" else ())


def partitions_of(catalog: Catalog, lake: Lake, stage: str, left_out: LeftOut | None = None) -> list[str | None]:
    """Keys of all declared partitions, and of all kept checkpoints; undeclared pairs do not exist.

    Args:
        catalog: the declarations.
        lake: whose checkpoints.
        stage: an asset; ``eval_scores`` stands for all evaluations.
        left_out: gets the records of checkpoints that can neither be shown nor used.
    """
    match stage:
        case "raw_corpus":
            return list(catalog.corpora)
        case "tokenized_shards":
            return [multi_key(corpus=corpus, model=model) for corpus, model in shard_pairs(catalog)]
        case "megatron_checkpoint":
            return list(catalog.models)
        case "pretrained_checkpoint":
            return [multi_key(model=model, training_config=config) for model, config in catalog.pairs()]
        case "hf_export" | "eval_scores":
            return [str(key) for key in sorted(showable(lake, {} if left_out is None else left_out))]
        case _:
            return [None]


def require_partition(catalog: Catalog, lake: Lake, stage: str, partition: str | None) -> None:
    """Raises InputError, or what is wrong with a checkpoint, unless the stage has this partition; says which it has."""
    known = partitions_of(catalog, lake, stage)
    if stage == "tokenized_shards":  # shards that no run needs may be asked for by name
        known = [multi_key(corpus=corpus, model=model) for corpus in catalog.corpora for model in catalog.models]
    if partition in known:
        return
    _require_sound(catalog, stage, partition)
    if known == [None]:
        raise InputError(f"{stage} has no partitions; leave out --partition.")
    names = [str(key) for key in known]
    if stage in ("hf_export", "eval_scores") and partition in {str(key) for key in lake.kept_checkpoints()}:
        read_kept(lake, CheckpointKey.parse(str(partition)))  # says what is wrong with it
    if partition is None:
        raise InputError(f"{stage} has partitions; give --partition KEY or --all. Keys: {', '.join(names) or 'none'}.")
    if stage == "pretrained_checkpoint" and partition.count("|") == 1:
        catalog.require_pair(*partition.split("|"))
    raise InputError(
        f"{stage} has no partition {partition!r}.{did_you_mean(partition, names)} Keys: {', '.join(names) or 'none'}."
    )


def _require_sound(catalog: Catalog, stage: str, partition: str | None) -> None:
    """Raises DeclarationError where a partition is none because a file that it goes by is broken."""
    kinds = {
        "raw_corpus": ("corpus",),
        "tokenized_shards": ("corpus", "model"),
        "megatron_checkpoint": ("model",),
        "pretrained_checkpoint": ("model", "training_config"),
    }
    names = zip(kinds.get(stage, ()), (partition or "").split("|"), strict=False)
    if problems := [problem for key in names for problem in catalog.broken.get(key, ())]:
        raise DeclarationError(problems)
