"""Materialisations by real runs on the project's real instance, of assets that stand where the real ones do.

Their artifacts have a file or two and nothing in them was computed, so that a long history takes seconds.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.evaluation.scores import COLUMNS, SCORES, write_scores
from pamp_pipelines.lake.artifact import Artifact, find
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.hashing import sha256_json
from pamp_pipelines.lake.manifest import ArtifactRef, CheckResult, FileEntry, Manifest
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.orchestration.checkpoints import announce
from pamp_pipelines.orchestration.checks import check_specs
from pamp_pipelines.orchestration.declarations import observe
from pamp_pipelines.orchestration.details import details
from pamp_pipelines.orchestration.instance import open_instance
from pamp_pipelines.orchestration.metadata import result
from pamp_pipelines.orchestration.resources import ProjectResource
from pamp_pipelines.project import Project
from pamp_pipelines.training.kept import read_record
from tests.train_jobs import plain_train_job


@dataclass
class Story:
    """What happens to a project, one thing after another."""

    project: Project
    made: dict[tuple[str, str | None], Artifact] = field(default_factory=dict)
    """What each partition shows, by asset and partition."""
    kept: dict[str, ArtifactRef] = field(default_factory=dict)
    """Kept checkpoints by key."""
    _definitions: dg.Definitions | None = None

    @property
    def lake(self) -> Lake:
        return Lake(self.project.lake)

    def observe(self) -> None:
        """Reload the definitions, and do what the sensor does."""
        self._definitions = None
        with open_instance(self.project) as instance:
            observe(instance, load_catalog(self.project), instance.report_runless_asset_event)

    def edit(self, file: str, **fields: Any) -> None:
        """Change fields of a declaration; the sensor sees it."""
        path = self.project.assets / f"{file}.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **fields}))
        self.observe()

    def make(
        self,
        asset: str,
        partition: str | None,
        word: str = "first",
        *inputs: tuple[str, str],
        failed: Sequence[str] = (),
    ) -> Artifact:
        """Materialise a partition.

        Args:
            asset: key, with slashes.
            partition: its key.
            word: decides the content; the same word again finds the artifact of before.
            inputs: asset and partition of what it is made of, as they are shown now.
            failed: checks that fail, with a warning.
        """
        refs = [self.kept[key] if name == "checkpoint" else self.made[name, key].ref for name, key in inputs]
        if self._definitions is None:
            self._definitions = build_definitions(self.project)
        graph = self._definitions.resolve_asset_graph()
        key = dg.AssetKey(asset.split("/"))
        spec = graph.get(key).assets_def.get_asset_spec(key).replace_attributes(automation_condition=None)
        checks = check_specs(asset, graph.get(key).partitions_def)

        @dg.multi_asset(specs=[spec], check_specs=checks, name=key.path[-1])
        def stage(context: dg.AssetExecutionContext, pamp: ProjectResource) -> dg.MaterializeResult:
            artifact = self._publish(asset, partition, word, refs, failed)
            return result(artifact, details(artifact), asset=asset)

        externals = [one for one in self._definitions.assets or () if isinstance(one, dg.AssetSpec)]
        with open_instance(self.project) as instance:
            job = dg.Definitions(
                [*externals, stage],
                resources={"pamp": ProjectResource(root=str(self.project.root))},
                executor=dg.in_process_executor,
            ).resolve_implicit_global_asset_job_def()
            quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            job.execute_in_process(asset_selection=[key], partition_key=partition, instance=instance, run_config=quiet)
        return self.made[asset, partition]

    def keep(self, key: str, created: str = "2026-01-01T00:00:00+00:00") -> Path:
        """A kept checkpoint that its run reports; returns the folder of its files."""
        parsed = CheckpointKey.parse(key)
        record = self.lake.kept_record(parsed)
        run = record.parent.parent
        payload = run / f"checkpoints/iter_{parsed.step:07d}"
        payload.mkdir(parents=True)
        (payload / ".metadata").write_bytes(b"metadata")
        manifest = Manifest(
            kind="checkpoint",
            id=key,
            content=f"content of {key}",
            created=created,
            files=(FileEntry(path=f"checkpoints/{payload.name}/.metadata", bytes=8, sha256=""),),
            location=f"checkpoints/{payload.name}",
        )
        write_text(record, manifest.model_dump_json())
        self.kept[key] = ArtifactRef(kind="checkpoint", id=manifest.id, content=manifest.content)
        with open_instance(self.project) as instance:
            announce(instance, instance.report_runless_asset_event, parsed, read_record(run, parsed.step))
        return payload

    def lose_home(self) -> None:
        shutil.rmtree(self.project.dagster_home)

    def _publish(
        self, asset: str, partition: str | None, word: str, inputs: Sequence[ArtifactRef], failed: Sequence[str]
    ) -> Artifact:
        stage, _, evaluation = asset.partition("/")
        id = sha256_json(
            [asset, (partition or "").partition("|")[0] if stage == "tokenized_shards" else partition, word]
        )
        final = self._folder(stage, partition or "", evaluation, id)
        found = find(final, id)
        if found is None:
            with publish(final, kind=stage, id=id, inputs=inputs) as draft:
                draft.stats |= {"words": len(word)}
                draft.checks += [
                    CheckResult(name=spec.name, passed=spec.name not in failed, severity="WARN", description=word)
                    for spec in check_specs(asset, None)
                ]
                _fill(draft.dir, stage, word)
            found = draft.artifact
        self.made[asset, partition] = found
        return found

    def _folder(self, stage: str, key: str, evaluation: str, id: str) -> Path:
        first, _, second = key.partition("|")
        match stage:
            case "raw_corpus":
                return self.lake.corpus_dir(first, id)
            case "tokenized_shards":
                return self.lake.shards_dir(first, id)
            case "megatron_checkpoint":
                return self.lake.checkpoint_dir(first, id)
            case "pretrained_checkpoint":
                return self.lake.version_dir(first, second, len(self.lake.versions(first, second)) + 1)
            case "hf_export":
                return self.lake.export_dir(CheckpointKey.parse(key))
            case "eval_scores":
                return self.lake.scores_dir(CheckpointKey.parse(key), evaluation)
            case _:
                return self.lake.reports_dir


def _fill(folder: Path, stage: str, word: str) -> None:
    (folder / "payload.txt").write_text(f"{stage} {word}")
    match stage:
        case "raw_corpus":
            (folder / "sample.jsonl").write_text(f'{{"text": "{word}"}}\n')
        case "pretrained_checkpoint":
            write_text(folder / "job.json", plain_train_job(folder, iterations=3).model_dump_json())
            (folder / "metrics.jsonl").write_text(
                "".join(f'{{"iteration": {n}, "loss": {9 - n}}}\n' for n in (1, 2, 3))
            )
        case "eval_scores":
            row = dict.fromkeys(COLUMNS) | {"task": "t", "metric": "acc", "value": len(word) / 100}
            write_scores(folder / SCORES, [row])
        case "leaderboard":
            (folder / "leaderboard.csv").write_text(f"model,version,step,tokens_seen,e/t/acc\n{word},,,1,0.5\n")
