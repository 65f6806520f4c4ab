"""Synthetic lakes: finished artifacts of every kind, chained by their manifests, without a model in them."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.evaluation.scores import COLUMNS, SAMPLES, SCORES, write_scores
from pamp_pipelines.evaluation.values import VALUES, contributions, write_values
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.manifest import ArtifactRef, Manifest, artifact_id
from pamp_pipelines.lake.producer import producer
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.project import Project
from tests.train_jobs import plain_train_job

os.environ["HF_HUB_OFFLINE"] = "1"


@dataclass
class LakeBuilder:
    """Publishes a chain raw_corpus -> shards -> checkpoint -> export, and scores on top."""

    lake: Lake

    def artifact(
        self,
        kind: str,
        final: Path,
        inputs: list[Artifact | ArtifactRef],
        payload: str = "payload.txt",
        text: str = "",
        **declaration: Any,
    ) -> Artifact:
        parents = [i.id for i in inputs]
        with publish(
            final, kind=kind, id=artifact_id(kind, 1, parents, declaration), inputs=inputs, declaration=declaration
        ) as draft:
            (draft.dir / payload).write_text(text or f"{kind} {declaration}")
        return draft.artifact

    def export(self, key: CheckpointKey, seed: int = 1) -> Artifact:
        """An export of the checkpoint with everything before it."""
        raw = self.artifact("raw_corpus", self.lake.corpus_dir("poems", "c" * 64), [], poems={"licence": "CC0-1.0"})
        shards = self.artifact(
            "tokenized_shards",
            self.lake.shards_dir("poems", "d" * 64),
            [raw],
            payload="heldout.jsonl",
            text='{"text": "a rose"}\n',
            tokenizer={"sha256": "tok" * 10},
        )
        imported = self.artifact(
            "megatron_checkpoint", self.lake.checkpoint_dir(key.model, "e" * 64), [], model=key.model
        )
        run = self.lake.version_dir(key.model, key.training_config, key.version)
        run.mkdir(parents=True, exist_ok=True)
        self.training_job(key, run, shards.path)
        kept = Manifest(
            kind="checkpoint",
            id=artifact_id("checkpoint", 1, [], str(key)),
            content=artifact_id("content", 1, [], str(key)),
            created="2026-01-02T03:04:05+00:00",
            inputs=(shards.ref, imported.ref),
            declaration={"training_config": {key.training_config: {"seed": seed}}},
            producer=producer(),
            location="checkpoints/iter",
        )
        write_text(self.lake.kept_record(key), kept.model_dump_json())
        ref = ArtifactRef(kind=kept.kind, id=kept.id, content=kept.content)
        return self.artifact("hf_export", self.lake.export_dir(key), [ref], step=key.step)

    def training_job(self, key: CheckpointKey, run: Path, shards: Path) -> None:
        job = plain_train_job(
            run.absolute(),
            name=str(key),
            train=[{"prefix": shards.absolute() / "train", "weight": 1.0}],
            heldout=[{"corpus": "poems", "prefix": shards.absolute() / "heldout"}],
            sequence_length=64,
            iterations=100,
        )
        write_text(run / "job.json", job.model_dump_json())

    def metrics(self, key: CheckpointKey, entries: list[dict[str, Any]]) -> None:
        run = self.lake.version_dir(key.model, key.training_config, key.version)
        run.mkdir(parents=True, exist_ok=True)
        write_text(run / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))

    def scores(
        self,
        key: CheckpointKey,
        evaluation: str,
        task: str,
        values: dict[str, tuple[float, float | None]],
        samples: list[dict[str, Any]] | None = None,
        **row: Any,
    ) -> Artifact:
        """``values``: metric -> (value, standard error); ``samples``: lm-eval's; ``row``: further columns."""
        export = self.export(key)
        rows = [
            dict.fromkeys(COLUMNS)
            | {
                "model": key.model,
                "training_config": key.training_config,
                "version": key.version,
                "step": key.step,
                "tokens_seen": key.step * 256,
                "evaluation": evaluation,
                "task": task,
                "metric": metric,
                "value": value,
                "stderr": error,
                "higher_is_better": not metric.endswith(("perplexity", "per_byte")),
                "n": 24,
                "n_available": 24,
                "seconds": 1.5,
                "prefix_token": "<|endoftext|>",
                "prefix_id": 0,
            }
            | row
            for metric, (value, error) in values.items()
        ]
        final = self.lake.scores_dir(key, evaluation)
        id = artifact_id("eval_scores", 1, [export.id], [evaluation, repr(values), repr(row)])
        with publish(final, kind="eval_scores", id=id, inputs=[export]) as draft:
            write_scores(draft.dir / SCORES, rows)
            if samples:
                write_values(draft.dir / VALUES, contributions(samples, {task: list(values)}))
            shown = [
                {
                    "task": task,
                    "doc": {"problem": "1 + 1"},
                    "target": "2",
                    "filtered_resps": [answer],
                    "exact_match": right,
                }
                for answer, right in (("3", 0), ("2", 1))
            ]
            (draft.dir / SAMPLES).write_text("".join(json.dumps(sample) + "\n" for sample in shown))
        return draft.artifact


@pytest.fixture(scope="module")
def directory(tiny_project: Project) -> Path:
    return tiny_project.data / "models/imported"


@pytest.fixture(scope="module")
def with_bos(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a tokenizer that puts <|endoftext|> before every text, as Llama's does."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    other = tmp_path_factory.mktemp("bos") / "model"
    shutil.copytree(directory, other)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A $B", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save_pretrained(other)
    assert AutoTokenizer.from_pretrained(other).encode("a")[0] == 0
    return other


@pytest.fixture(scope="module")
def shared_builder(tmp_path_factory: pytest.TempPathFactory) -> LakeBuilder:
    return LakeBuilder(Lake(tmp_path_factory.mktemp("shared") / "lake"))


@pytest.fixture
def builder(tmp_path: Path) -> LakeBuilder:
    return LakeBuilder(Lake(tmp_path / "lake"))
