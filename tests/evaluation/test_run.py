"""Evaluations through the worker process, as CLI and assets run them."""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

from pamp_pipelines.cli import pamp
from pamp_pipelines.corpus.job import corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.errors import InputError, MissingInput, VerificationFailed, WorkerFailed
from pamp_pipelines.evaluation import run
from pamp_pipelines.evaluation.array import evaluate_many
from pamp_pipelines.evaluation.build import build_tasks
from pamp_pipelines.evaluation.job import evaluate_job
from pamp_pipelines.evaluation.plain import plain_job
from pamp_pipelines.evaluation.run import evaluate
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import CheckpointKey, Lake
from pamp_pipelines.tokenization.job import tokenize_job

ROSE = [{"text": "What's in a name? that which we call a rose\n"}, {"text": "By any other name would smell as sweet;"}]


@pytest.fixture
def heldout(tmp_path):
    file = tmp_path / "heldout.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROSE))
    return file


@pytest.fixture
def declared(tiny_project):
    folder = tiny_project.assets / "evaluations"
    return {file.stem: Evaluation.model_validate(yaml.safe_load(file.read_text())) for file in folder.glob("*.yaml")}


@pytest.fixture
def job(tiny_project, declared, heldout, tmp_path):
    def make(*suites, **changes):
        arguments = {"declared": declared, "data": {"heldout_perplexity": heldout}, "root": tiny_project.root}
        directory = tiny_project.data / "models/imported"
        return plain_job(directory, suites, tmp_path / "scores", **(arguments | changes))

    return make


@pytest.mark.slow
def test_one_worker_scores_all_and_a_second_call_finds_them(job, tmp_path):
    asked = job("perplexity", "sums")
    events = []
    artifacts = evaluate(asked, events.append)
    assert [a.path.name for a in artifacts] == ["perplexity", "sums"]
    assert sum(e.data.get("loaded", False) for e in events) == 1, "one model load for both"
    assert {e.data["metric"] for e in events if e.kind == "metric"} >= {"word_perplexity", "exact_match"}
    for artifact in artifacts:
        read_artifact(artifact.path, verify="hash")
        table = pd.read_parquet(artifact.path / "scores.parquet")
        assert (table["model_content"] == asked.subject.content).all()
        samples = (artifact.path / "samples.jsonl").read_text().splitlines()
        assert len(samples) == artifact.manifest.stats["samples"] == 2
        assert json.loads((artifact.path / "results.json").read_text())["results"]
    sums = pd.read_parquet(artifacts[1].path / "scores.parquet")
    assert sums[["n", "n_available", "limit"]].drop_duplicates().to_numpy().tolist() == [[2, 8, 2]]
    assert not list((tmp_path / "scores").glob(".work*"))
    again = evaluate(asked, lambda event: pytest.fail(f"nothing was left to do, but {event}"))
    assert [a.content for a in again] == [a.content for a in artifacts]


@pytest.mark.slow
def test_a_failure_keeps_what_was_finished_and_publishes_nothing_else(job, tiny_project, tmp_path):
    broken = tmp_path / "sums.jsonl"
    broken.write_text('{"problem": "What is 1 + 1?"}\n')  # no solution
    asked = job(
        "perplexity", "sums", data={"arithmetic_boxed": broken, "heldout_perplexity": tmp_path / "heldout.jsonl"}
    )
    with pytest.raises(WorkerFailed, match="solution"):
        evaluate(asked)
    assert not (tmp_path / "scores/sums").exists()
    assert read_artifact(tmp_path / "scores/perplexity").kind == "eval_scores"


def test_one_name_twice_is_refused_instead_of_waited_for(job, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.yaml").write_text("task: x\noutput_type: loglikelihood_rolling\ntest_split: test\n")
    asked = job(*(str(tmp_path / folder / "x.yaml") for folder in "ab"), data={"x": tmp_path / "heldout.jsonl"})
    for twice in (asked, job("sums", "sums", data={})):
        with pytest.raises(InputError, match=r"evaluations of one job need different names, and '(x|sums)'"):
            evaluate(twice)
    one = job("sums", data={})
    cluster = ComputeProfile(launcher="slurm")
    with pytest.raises(InputError, match=r"scores/sums: two of the jobs write"):
        evaluate_many([one, one], cluster, tmp_path)


def test_the_command_takes_a_suite_that_is_named_twice_once(tiny_project, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(run, "evaluate", lambda job, _: asked.append(job) or [])
    command = ["evaluate", str(tiny_project.data / "models/imported"), "--project", str(tiny_project.root)]
    command += ["--output", str(tmp_path / "scores"), "--suite", "sums", "--suite", "sums", "--batch-size"]
    told = CliRunner().invoke(pamp, [*command, "Auto"])
    assert (told.exit_code, [spec.name for spec in asked[0].evaluations]) == (0, ["sums"]), told.output
    assert asked[0].evaluations[0].batch_size == "auto"
    for wrong in ("many", "0", "-1", "1.5"):
        refused = CliRunner().invoke(pamp, [*command, wrong])
        assert (
            refused.exit_code,
            f"'{wrong}' is neither a number of requests, from 1, nor `auto`" in refused.output,
        ) == (2, True)


def test_identity_covers_what_decides_the_score(job, heldout, tiny_project, tmp_path):
    base = job("perplexity").evaluations[0].id
    assert job("perplexity").evaluations[0].id == base
    assert job("perplexity", settings={"limit": 3}).evaluations[0].id != base
    assert job("perplexity", prefix="the").evaluations[0].id != base
    other = tmp_path / "copy"
    shutil.copytree(tiny_project.data / "models/imported", other)
    copied = plain_job(other, ["heldout_perplexity"], tmp_path / "scores", data={"heldout_perplexity": heldout})
    assert copied.subject.content == job("perplexity").subject.content, "another folder is no other model"
    heldout.write_text('{"text": "other"}\n')
    assert job("perplexity").evaluations[0].id != base


def test_plain_suites_need_no_project(tiny_project, heldout, tmp_path):
    directory = tiny_project.data / "models/imported"
    task = tmp_path / "my.yaml"
    task.write_text("task: mine\noutput_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\n")
    job = plain_job(directory, [str(task)], tmp_path / "out", data={"mine": heldout}, settings={"limit": 1})
    assert job.evaluations[0].tasks[0].data == (heldout,)
    spec = job.evaluations[0]
    assert (spec.name, spec.tasks[0].name, spec.limit) == ("my", "mine", 1)
    stock = plain_job(directory, ["hellaswag"], tmp_path / "out").evaluations[0].tasks[0]
    assert (stock.name, stock.yaml.name, stock.data) == ("hellaswag", "hellaswag.yaml", ())
    assert plain_job(directory, ["hellaswag"], tmp_path / "out", data={"hellaswag": heldout})


def test_bad_requests_are_refused_before_a_worker_starts(job, tiny_project, tmp_path, heldout):
    with pytest.raises(InputError, match=r"--data heldout_perplexity=heldout\.jsonl"):
        job("perplexity", data={})
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        job("perplexity", data={"heldout_perplexity": tmp_path / "none.jsonl"})
    with pytest.raises(InputError, match="data for typo: no task of perplexity"):
        job("perplexity", data={"heldout_perplexity": heldout, "typo": heldout})
    with pytest.raises(InputError, match="needs local rows"):
        job("heldout_perplexity", data={})
    with pytest.raises(InputError, match="'minerva_math' stands for several tasks"):
        job("minerva_math", data={"minerva_math": heldout})
    with pytest.raises(InputError, match="'no_such_task': no task of this package"):
        job("no_such_task", data={})
    with pytest.raises(InputError, match=r"no config\.json"):
        plain_job(tmp_path, ["hellaswag"], tmp_path / "out")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="other weight formats can run code"):
        plain_job(pickled, ["hellaswag"], tmp_path / "out")


FOREIGN = """
task: foreign
output_type: generate_until
test_split: test
doc_to_text: "{{text}}"
doc_to_target: x
process_results: !function code.score
metric_list: [{metric: secret, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def foreign(tmp_path):
    """A task from outside the project that leaves a file where its code ran."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    code = f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n"
    (folder / "code.py").write_text(code + "def score(doc, results):\n    return {'secret': 0.5}\n")
    (folder / "task.yaml").write_text(FOREIGN)
    return folder


def test_foreign_code_is_refused_unless_it_is_allowed(foreign, tiny_project, job, heldout, tmp_path):
    suite, rows = str(foreign / "task.yaml"), {"foreign": heldout}
    sentence = r"task\.yaml:7: `!function code\.score` runs code from outside the project .*--allow-code"
    with pytest.raises(InputError, match=sentence):
        job(suite, data=rows)
    declared = Evaluation(tasks=(suite,))
    with pytest.raises(InputError, match=sentence):
        job("theirs", declared={"theirs": declared}, data=rows)
    command = ["evaluate", str(tiny_project.data / "models/imported"), "--project", str(tiny_project.root)]
    command += ["--suite", suite, "--data", f"foreign={heldout}", "--output", str(tmp_path / "scores")]
    refused = CliRunner().invoke(pamp, command)
    assert (refused.exit_code, "outside the project" in refused.output) == (1, True)
    assert not (foreign / "ran").exists()
    allowed = job("theirs", declared={"theirs": declared.model_copy(update={"allow_code": True})}, data=rows)
    assert not (foreign / "ran").exists(), "only the worker runs it"
    [spec] = allowed.evaluations
    [task] = build_tasks(allowed, spec)
    assert (foreign / "ran").exists()
    assert task.process_results(None, None) == {"secret": 0.5}
    assert spec.id == job("theirs", declared={"theirs": declared}, data=rows, root=foreign).evaluations[0].id


KEY = CheckpointKey("imported", "both", 1, 10)


def test_a_checkpoint_is_scored_on_the_held_out_text_of_its_run(builder, tiny_project):
    export = builder.export(KEY)
    job = evaluate_job(load_catalog(tiny_project), builder.lake, KEY, ["perplexity", "sums"])
    perplexity, sums = job.evaluations
    assert perplexity.tasks[0].data == (builder.lake.shards_dir("poems", "d" * 64) / "heldout.jsonl",)
    assert sums.tasks[0].data == (tiny_project.root / "data/sums.jsonl",)
    assert (job.subject.prefix, job.subject.step, job.subject.tokens_seen) == (0, 10, 10 * 4 * 64)
    assert job.subject.inputs == (export.ref,)
    assert job.subject.checkpoint_content == export.manifest.inputs[0].content
    assert job.subject.baseline.rows == perplexity.tasks[0].data
    assert job.subject.baseline.train == (builder.lake.shards_dir("poems", "d" * 64) / "train",)
    assert perplexity.output == builder.lake.scores_dir(KEY, "perplexity")


def test_the_held_out_text_of_any_declared_corpus_can_be_scored(builder, tiny_project):
    builder.export(KEY)
    catalog = load_catalog(tiny_project)

    def on(corpus):
        declared = catalog.evaluations["perplexity"].model_copy(
            update={"data": {"heldout_perplexity": f"held_out:{corpus}"}}
        )
        found.append(evaluate_job(replace(catalog, evaluations={"mine": declared}), builder.lake, KEY, ["mine"]))
        return found[-1].evaluations[0].tasks[0]

    found = []
    assert on("poems").data == (builder.lake.shards_dir("poems", "d" * 64) / "heldout.jsonl",), "as the run had them"
    with pytest.raises(InputError, match=r"data\.heldout_perplexity: 'held_out:' names no corpus after the colon"):
        on("")
    corpus = "sonnets"
    scan_corpus(corpus_job(catalog, builder.lake, corpus))
    with pytest.raises(MissingInput, match=r"tokenized_shards partition 'sonnets\|imported'"):
        on(corpus)
    shards = tokenize_job(catalog, builder.lake, corpus, KEY.model)
    with publish(shards.output, kind="tokenized_shards", id=shards.id) as draft:
        (draft.dir / "heldout.jsonl").write_text('{"text": "a rose"}\n')
        draft.stats["heldout"] = {"documents": 1}
    assert on(corpus).data == (shards.output / "heldout.jsonl",)
    job, [spec], [of_run] = found[-1], found[-1].evaluations, found[0].evaluations
    assert (of_run.inputs, of_run.heldout) == ((), (builder.lake.shards_dir("poems", "d" * 64) / "heldout",))
    assert (spec.inputs, spec.heldout) == ((read_artifact(shards.output).ref,), (shards.output / "heldout",))
    assert spec.id != of_run.id
    work = job.work / "mine"
    work.mkdir(parents=True)
    (work / "done.json").write_text('{"stats": {}, "checks": []}')
    run.collect(job)
    manifest = read_artifact(spec.output).manifest
    assert manifest.inputs == (*job.subject.inputs, *spec.inputs), "its scores lead to the corpus"
    assert not {"inputs", "heldout"} & set(manifest.declaration["evaluation"])
    assert on(corpus).data_sha256 == on("poems").data_sha256, "equal rows"


def test_scores_of_the_checkpoint_before_come_along(builder, tiny_project):
    for step in (0, 4, 10, 20):
        key = CheckpointKey("imported", "both", 1, step)
        builder.scores(key, "perplexity", "heldout_perplexity", {"word_perplexity": (9.0 + step, None)})
    builder.scores(CheckpointKey("imported", "both", 1, 4), "sums", "sums", {"exact_match": (0.5, None)})
    job = evaluate_job(load_catalog(tiny_project), builder.lake, KEY, ["perplexity", "sums"])
    perplexity, sums = job.evaluations
    assert (perplexity.predecessor.step, perplexity.predecessor.rows[0]["value"]) == (4, 13.0)
    assert sums.predecessor.step == 4
    (builder.lake.scores_dir(CheckpointKey("imported", "both", 1, 4), "perplexity") / "scores.parquet").write_bytes(
        b"?"
    )
    again = evaluate_job(load_catalog(tiny_project), builder.lake, KEY, ["perplexity"]).evaluations[0]
    assert again.predecessor.step == 0
    assert again.id == perplexity.id, "a verdict's reference does not change what the score is"


def test_a_moved_lake_is_scored_where_it_is(builder, tiny_project, tmp_path):
    builder.export(KEY)
    builder.lake.root.rename(tmp_path / "moved")
    lake = Lake(tmp_path / "moved")
    job = evaluate_job(load_catalog(tiny_project), lake, KEY, ["perplexity"])
    assert job.evaluations[0].tasks[0].data == (lake.shards_dir("poems", "d" * 64) / "heldout.jsonl",)


def test_checkpoints_of_a_config_that_is_no_longer_declared_are_scored(builder, tiny_project):
    builder.export(KEY)
    catalog = load_catalog(tiny_project)
    without = replace(catalog, training_configs={})
    assert evaluate_job(without, builder.lake, KEY, ["sums"]) == evaluate_job(catalog, builder.lake, KEY, ["sums"])


def test_missing_inputs_say_what_to_materialise(builder, tiny_project):
    catalog = load_catalog(tiny_project)
    with pytest.raises(MissingInput, match="hf_export"):
        evaluate_job(catalog, builder.lake, KEY, ["perplexity"])
    builder.export(KEY)
    (builder.lake.shards_dir("poems", "d" * 64) / "heldout.jsonl").unlink()
    with pytest.raises(MissingInput, match="tokenized_shards"):
        evaluate_job(catalog, builder.lake, KEY, ["perplexity"])


def test_an_export_that_failed_a_check_is_not_scored(builder, tiny_project):
    path = builder.export(KEY).path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["checks"] = [CheckResult(name="loss_matches_megatron", passed=False, description="off by 2").model_dump()]
    path.write_text(json.dumps(manifest))
    with pytest.raises(VerificationFailed, match="loss_matches_megatron: off by 2"):
        evaluate_job(load_catalog(tiny_project), builder.lake, KEY, ["perplexity"])
