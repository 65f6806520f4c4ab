"""What a lost Dagster home costs: ``python benchmarks/reindex.py [--checkpoints 100] [--work DIR]``.

Fills a lake with records of kept checkpoints, an export and a table of scores of each, and rebuilds the home twice: the
second time finds everything known. Prints one JSON object: partitions, and CPU and wall seconds of either.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

from pamp_pipelines.evaluation.scores import COLUMNS, SCORES, write_scores
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.manifest import ArtifactRef, CheckResult, FileEntry, Manifest
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.orchestration.reindex import reindex
from pamp_pipelines.project import Project

REPOSITORY = Path(__file__).parent.parent


def fill(lake: Lake, checkpoints: int) -> None:
    for step in range(1, checkpoints + 1):
        key = CheckpointKey("scratch", "both", 1, step)
        record = lake.kept_record(key)
        payload = record.parent.parent / f"checkpoints/iter_{step:07d}"
        payload.mkdir(parents=True)
        (payload / ".metadata").write_bytes(b"metadata")
        kept = Manifest(
            kind="checkpoint",
            id=str(key),
            content=f"content of {key}",
            created="2026-01-01T00:00:00Z",
            files=(FileEntry(path=f"checkpoints/{payload.name}/.metadata", bytes=8, sha256=""),),
            location=f"checkpoints/{payload.name}",
        )
        write_text(record, kept.model_dump_json())
        ref = ArtifactRef(kind=kept.kind, id=kept.id, content=kept.content)
        with publish(lake.export_dir(key), kind="hf_export", id=f"export {step}", inputs=[ref]) as export:
            (export.dir / "config.json").write_text(str(step))
            export.checks.append(CheckResult(name="coverage", passed=True))
        scores = lake.scores_dir(key, "sums")
        with publish(scores, kind="eval_scores", id=f"scores {step}", inputs=[export.artifact]) as draft:
            write_scores(draft.dir / SCORES, [dict.fromkeys(COLUMNS) | {"task": "t", "metric": "acc", "value": 0.5}])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument(
        "--work", type=Path, help="folder for the project; default: a temporary one, removed afterwards"
    )
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="reindex-"))
    try:
        root = work / "project"
        shutil.copytree(REPOSITORY / "tests/fixtures/project", root)
        project = Project(root)
        fill(Lake(project.lake), options.checkpoints)
        found = {}
        for name in ("lost", "known"):
            cpu, wall = time.process_time(), time.monotonic()
            partitions = len(reindex(project).reported)
            found[name] = {
                "partitions": partitions,
                "cpu_s": round(time.process_time() - cpu, 2),
                "wall_s": round(time.monotonic() - wall, 2),
            }
        print(json.dumps({"checkpoints": options.checkpoints, **found}))
    finally:
        if options.work is None:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
