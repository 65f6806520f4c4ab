"""lm-eval's own tasks by name, on rows of a local folder named as the hub's data sets."""

import json
import time
from types import SimpleNamespace

import pytest

from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.row_files import HubSource, hub_source, row_file
from pamp_pipelines.demo.math_rows import SUBJECTS
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.build import build_tasks, leaves
from pamp_pipelines.evaluation.spec import EvaluateJob, Subject, evaluation_spec
from pamp_pipelines.evaluation.stock import data_sets, find_stock
from pamp_pipelines.evaluation.task_data import numbered_rows

ROWS = {
    "openai/gsm8k/main/test": {"question": "1 + 1?", "answer": "It is 2. #### 2"},
    "allenai/ai2_arc/ARC-Easy/validation": {
        "question": "Which is hot?",
        "choices": {"text": ["ice", "fire"], "label": ["A", "B"]},
        "answerKey": "B",
    },
    "Rowan/hellaswag/default/validation": {
        **{"activity_label": "Rain", "ctx_a": "It rains.", "ctx_b": "he", "ctx": "It rains. he"},
        **{"endings": ["runs.", "flies."], "label": "0"},
    },
    "HuggingFaceH4/MATH-500/default/test": {"problem": "1+1?", "solution": r"\boxed{2}", "answer": "2"},
    "EleutherAI/wikitext_document_level/wikitext-2-raw-v1/test": {"page": " = A rose = \n It is red ."},
    **{
        f"EleutherAI/hendrycks_math/{subject}/test": {"problem": "1+1?", "solution": r"\boxed{2}", "level": "1"}
        for subject in SUBJECTS
        if subject != "500"
    },
}


@pytest.fixture
def hub(tmp_path):
    for name, row in ROWS.items():
        file = tmp_path / "hub" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((json.dumps(row) + "\n") * 3)
    return tmp_path / "hub"


@pytest.fixture
def asked(tmp_path):
    def make(*tasks, **settings):
        subject = Subject(directory=tmp_path, content="c0ffee", model="scripted")
        declared = Evaluation(tasks=tasks, **settings)
        spec = evaluation_spec("mine", declared, subject, tmp_path / "out", {}, tmp_path)
        return EvaluateJob(subject=subject, evaluations=(spec,), work=tmp_path / "work")

    return make


def built(job):
    return list(leaves(build_tasks(job, job.evaluations[0])))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "task") for name in ("hellaswag", "gsm8k", "gsm8k_cot", "arc_easy", "arc_challenge", "wikitext")),
        *((name, "task") for name in ("minerva_math500", "hendrycks_math500", "hendrycks_math_algebra", "piqa")),
        *((name, "collection") for name in ("minerva_math", "hendrycks_math", "mmlu", "ai2_arc", "squadv2")),
    ],
)
def test_names_are_found(name, kind):
    stock = find_stock(name)
    assert (stock.kind, stock.name) == (kind, name)
    assert f"{name}" in stock.file.read_text()


def test_an_unknown_name_is_none_and_finding_takes_no_index():
    assert find_stock("no_such_task_at_all") is None
    find_stock.cache_clear()
    start = time.process_time()
    find_stock("hellaswag")
    assert time.process_time() - start < 2, "lm-eval's own index takes 6 to 9 CPU seconds"


def test_a_group_reads_the_data_sets_of_its_tasks():
    assert "EleutherAI/hendrycks_math" in data_sets(find_stock("minerva_math"))
    assert data_sets(find_stock("arc_easy")) == ["allenai/ai2_arc"]


def test_suites_by_name_read_the_local_folder(hub, asked):
    tasks = ("gsm8k_cot", "arc_easy", "hellaswag", "minerva_math500", "hendrycks_math500", "wikitext")
    loaded = {task.config.task: task for task in built(asked(*tasks, datasets="hub"))}
    assert list(loaded) == list(tasks)
    assert all(len(task.eval_docs) == 3 for task in loaded.values())
    assert loaded["arc_easy"].config.test_split is None, "the folder has the validation split only, so that is scored"


def test_a_group_keeps_its_tasks_and_reads_the_local_folder(hub, asked):
    tasks = built(asked("minerva_math", datasets="hub"))
    assert len(tasks) == 7
    assert all(len(task.eval_docs) == 3 for task in tasks)


def test_examples_that_the_data_lacks_are_asked_for(hub, asked):
    with pytest.raises(InputError, match=r"'gsm8k': 5 examples are asked for.*lacks the split"):
        built(asked("gsm8k", datasets="hub"))
    assert built(asked("gsm8k", datasets="hub", num_fewshot=0))


def test_the_identity_covers_the_rows(hub, asked):
    base, group = asked("gsm8k_cot", datasets="hub"), asked("minerva_math", datasets="hub")
    assert base.evaluations[0].tasks[0].data_sha256
    (hub / "openai/gsm8k/main/test.jsonl").write_text('{"question": "2 + 2?", "answer": "#### 4"}\n')
    (hub / "EleutherAI/hendrycks_math/algebra/test.jsonl").write_text('{"problem": "p", "solution": "s"}\n')
    assert asked("gsm8k_cot", datasets="hub").evaluations[0].id != base.evaluations[0].id
    assert asked("minerva_math", datasets="hub").evaluations[0].id != group.evaluations[0].id


def test_a_folder_that_is_not_there_says_how_to_make_it(asked):
    with pytest.raises(InputError, match=r"nowhere: no such folder.*demo\.prepare --benchmarks"):
        asked("gsm8k_cot", datasets="nowhere")


def test_rows_of_an_installed_package(tmp_path):
    def resolve(text):
        return tmp_path / text

    assert row_file("a/b.jsonl", resolve) == tmp_path / "a/b.jsonl"
    file = row_file("package:lm-eval/lm_eval/tasks/hellaswag/hellaswag.yaml", resolve)
    assert file.name == "hellaswag.yaml"
    assert file.is_file()
    (tmp_path / "rows.jsonl").write_text("{}")
    assert row_file("package:only-data/rows.jsonl", resolve, tmp_path) == tmp_path / "rows.jsonl"
    with pytest.raises(InputError, match="package 'no-such' is not installed"):
        row_file("package:no-such/x.jsonl", resolve)
    with pytest.raises(InputError, match=r"'lm-eval' has no file 'x\.jsonl'"):
        row_file("package:lm-eval/x.jsonl", resolve)


def test_sources_of_the_hub():
    assert hub_source("hub:a/b") == HubSource("a/b", None, None)
    assert hub_source("hub:a/b:main@v1.0") == HubSource("a/b", "main", "v1.0")
    with pytest.raises(InputError, match="expected hub:owner/name"):
        hub_source("hub:b")


def test_gzipped_rows(tmp_path):
    import gzip

    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write('{"a": 1}\n')
    assert list(numbered_rows(tmp_path / "rows.jsonl.gz")) == [(1, {"a": 1})]
    (tmp_path / "broken.jsonl.gz").write_bytes(b"\x1f\x8bhalf")
    with pytest.raises(InputError, match="cannot be read"):
        list(numbered_rows(tmp_path / "broken.jsonl.gz"))


def test_a_source_of_the_hub_takes_the_place_of_the_tasks_own(tmp_path, asked, monkeypatch):
    import datasets

    subject = Subject(directory=tmp_path, content="c0ffee", model="scripted")
    declared = Evaluation(tasks=("gsm8k_cot",), data={"gsm8k_cot": "hub:me/mine:main@abc"})
    source = {"gsm8k_cot": hub_source(declared.data["gsm8k_cot"])}
    spec = evaluation_spec("mine", declared, subject, tmp_path / "out", {}, None, source)
    seen = SimpleNamespace()

    def load(**arguments):
        seen.arguments = arguments
        return datasets.DatasetDict({"test": datasets.Dataset.from_list([ROWS["openai/gsm8k/main/test"]])})

    monkeypatch.setattr(datasets, "load_dataset", load)
    built(EvaluateJob(subject=subject, evaluations=(spec,), work=tmp_path))
    assert seen.arguments == {"path": "me/mine", "name": "main", "revision": "abc"}
