"""Evaluations in this process, with a scripted model in place of a trained one."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lm_eval.api.group import Group
from lm_eval.api.model import LM
from lm_eval.config.group import AggMetricConfig

from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.answering import TokenPolicy
from pamp_pipelines.evaluation.frames import cut
from pamp_pipelines.evaluation.groups import complete_groups
from pamp_pipelines.evaluation.harness import evaluate_loaded
from pamp_pipelines.evaluation.scores import COLUMNS
from pamp_pipelines.evaluation.spec import Baseline, EvaluateJob, Predecessor, Subject, evaluation_spec
from pamp_pipelines.evaluation.task_data import data_set
from pamp_pipelines.evaluation.task_files import read_task, shipped_tasks
from pamp_pipelines.evaluation.verdicts import extreme_scores, prompts_fit
from pamp_pipelines.tokenization.indexed import IndexedWriter

ARITHMETIC = Path(__file__).parents[2] / "data/arithmetic/add1.jsonl"
MATH = [
    (r"What is $\frac{1}{2}+\frac{1}{4}$?", r"It is $\boxed{\frac{3}{4}}$.", r"\frac{3}{4}", r"\frac{3}{5}"),
    (r"Find the interval.", r"So $x \in \boxed{[2,5)}$.", "[2,5)", "[2,5]"),
    (r"How many?", r"There are $\boxed{1,000}$ ways.", "1000", "100"),
    (r"Solve $x^2=9$, $x>0$.", r"Thus $x=\boxed{3}$.", "x = 3", "x = -3"),
]
"""problem, solution, an answer that is right though written otherwise, one that is wrong."""


class Scripted(LM):
    """Answers each prompt by a function of it."""

    def __init__(self, answer=lambda prompt: "", likelihood=lambda text: -float(len(text))):
        super().__init__()
        self.answer, self.likelihood = answer, likelihood
        self.asked: list[str] = []
        self.policy = TokenPolicy(prefix="<s>", prefix_id=0, prefix_source="bos", tokenizer_adds=(), bos_id=0, eos_id=1)
        self.dtype_name, self.device_name = "float32", "cpu"
        self.tokenizer, self.max_length = SimpleNamespace(), 128

    def configure(self, batch_size, max_length):
        self.batch_used = batch_size
        self.max_length = max_length or self.max_length

    def document_length(self, text):
        return len(text.split())

    def document_tokens(self, text):
        return [len(word) for word in text.split()]

    def generate_until(self, requests):
        self.asked += [request.args[0] for request in requests]
        return [self.answer(request.args[0]) for request in requests]

    def loglikelihood(self, requests):
        raise AssertionError("not asked for")

    def loglikelihood_rolling(self, requests):
        return [self.likelihood(request.args[0]) for request in requests]


def final(answer):
    return f" Let us see.\nFinal Answer: The final answer is ${answer}$. I hope it is correct."


@pytest.fixture
def job(tmp_path):
    def make(task, rows, **settings):
        data = tmp_path / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        subject = Subject(directory=tmp_path, content="c0ffee", model="scripted", step=7, tokens_seen=7000)
        declared = Evaluation(tasks=(task,), **settings)
        spec = evaluation_spec("mine", declared, subject, tmp_path / "out", {task: [data]}, tmp_path)
        return EvaluateJob(subject=subject, evaluations=(spec,), work=tmp_path / "work", trusted=(tmp_path,))

    return make


def run(job, model):
    return evaluate_loaded(job, job.evaluations[0], model)


def scores(outcome):
    return {row["metric"]: row["value"] for row in outcome.rows}


@pytest.mark.parametrize(("which", "expected"), [(2, 1.0), (3, 0.0)])
def test_math_is_scored_rightly(job, which, expected):
    answers = {row[0]: final(row[which]) for row in MATH}
    model = Scripted(
        lambda prompt: next(a for problem, a in answers.items() if problem in prompt.split("Problem:")[-1])
    )
    outcome = run(job("minerva_math_rows", [{"problem": p, "solution": s} for p, s, *_ in MATH]), model)
    assert scores(outcome)["exact_match"] == expected
    assert all("Find the domain of the expression" in prompt for prompt in model.asked), "four examples stand before"
    verdicts = {check.name: check for check in outcome.checks}
    assert not verdicts["score_not_extreme"].passed, "exactly 0 or 1 is pointed out"
    assert verdicts["score_not_extreme"].metadata["samples"]


@pytest.mark.parametrize(("shift", "expected"), [(0, 1.0), (1, 0.0)])
def test_shipped_arithmetic_is_scored_rightly(job, shift, expected):
    rows = [json.loads(line) for line in ARITHMETIC.read_text().splitlines()][:24]

    def answer(prompt):
        question = prompt.rsplit("What is ", 1)[1].split("?")[0]
        return final(sum(map(int, question.split(" + "))) + shift).removesuffix(
            "I hope it is correct."
        )  # the stop sequence

    outcome = run(job("arithmetic_boxed", rows), Scripted(answer))
    assert scores(outcome) == {"exact_match": expected, "math_verify": expected}
    assert outcome.rows[0]["n"] == 24


SUITES = {
    "gsm8k_cot": (
        "openai/gsm8k/main",
        {"question": "Ann has 1,000 pens and buys 5. How many?", "answer": "1000 + 5 = 1005. #### 1,005"},
        "1,000 and 5 make 1,005. The answer is {}.",
        ("1005", "1006"),
    ),
    "minerva_math500": (
        "HuggingFaceH4/MATH-500/default",
        {"problem": "Half and quarter?", "solution": r"It is $\boxed{\frac{3}{4}}$.", "answer": r"\frac{3}{4}"},
        "Final Answer: The final answer is ${}$. I hope it is correct.",
        (r"\frac34", r"\frac{3}{5}"),
    ),
    "hendrycks_math500": (
        "HuggingFaceH4/MATH-500/default",
        {"problem": "Half and quarter?", "solution": r"It is $\boxed{\frac{3}{4}}$.", "answer": r"\frac{3}{4}"},
        "It is ${}$.",
        (r"\frac34", r"\frac{3}{5}"),
    ),
    "hendrycks_math_algebra": (
        "EleutherAI/hendrycks_math/algebra",
        {"problem": "Solve $2x=1$.", "solution": r"$x=\boxed{0.5}$", "level": "1", "type": "Algebra"},
        "It is ${}$.",
        (r"\frac{1}{2}", r"\frac{1}{3}"),
    ),
}
"""Folder of the data set, a row, an answer around its result, a right result and a wrong one."""


@pytest.fixture
def on_hub_rows(tmp_path):
    """A job of lm-eval's own tasks on a folder of data sets with one row each."""

    def make(data_set, row, *tasks, **settings):
        folder = tmp_path / "hub" / data_set
        folder.mkdir(parents=True)
        (folder / "test.jsonl").write_text(json.dumps(row) + "\n")
        subject = Subject(directory=tmp_path, content="c0ffee", model="scripted")
        declared = Evaluation(tasks=tasks, datasets=str(tmp_path / "hub"), **settings)
        spec = evaluation_spec("mine", declared, subject, tmp_path / "out", {}, tmp_path)
        return EvaluateJob(subject=subject, evaluations=(spec,), work=tmp_path / "work")

    return make


@pytest.mark.parametrize("task", SUITES)
@pytest.mark.parametrize("expected", [1.0, 0.0])
def test_lm_evals_extractors_know_right_from_wrong(on_hub_rows, task, expected):
    data_set, row, around, (right, wrong) = SUITES[task]
    answer = around.replace("{}", right if expected else wrong)
    outcome = run(on_hub_rows(data_set, row, task), Scripted(lambda prompt: answer))
    found = scores(outcome)
    assert found, "a metric for each of the task's extractors"
    assert set(found.values()) == {expected}, found
    assert outcome.rows[0]["task_version"]
    assert outcome.rows[0]["data_sha256"]


def on_math(tmp_path, counts, **settings):
    """minerva_math with so many rows of each subject, of which the first is answered rightly."""
    for subject, count in counts.items():
        folder = tmp_path / "hub/EleutherAI/hendrycks_math" / subject
        folder.mkdir(parents=True)
        row = {"problem": "p{}", "solution": r"$\boxed{{{}}}$", "level": "1", "type": "Algebra"}
        lines = [json.dumps({key: value.format(n) for key, value in row.items()}) + "\n" for n in range(count)]
        for split in ("test", "train"):
            (folder / f"{split}.jsonl").write_text("".join(lines))
    subject = Subject(directory=tmp_path, content="c0ffee", model="scripted")
    declared = Evaluation(tasks=("minerva_math",), datasets=str(tmp_path / "hub"), **settings)
    spec = evaluation_spec("mine", declared, subject, tmp_path / "out", {}, tmp_path)
    asked = EvaluateJob(subject=subject, evaluations=(spec,), work=tmp_path / "work")
    return run(asked, Scripted(lambda _: final("0"))).rows


SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
            "precalculus")  # fmt: skip


@pytest.mark.parametrize("limit", [None, 2])
def test_a_group_says_how_many_samples_it_rests_on(tmp_path, limit):
    counts = {subject: 2 + number for number, subject in enumerate(SUBJECTS)}
    rows = [row for row in on_math(tmp_path, counts, limit=limit) if row["metric"] == "exact_match"]
    [group] = [row for row in rows if row["task"] == "minerva_math"]
    tasks = [row for row in rows if row is not group]
    assert len(tasks) == 7
    assert (group["n"], group["n_available"], group["limit"]) == (2 * 7 if limit else 35, 35, limit)
    assert cut(group) == ("14 of 35" if limit else None)
    pooled = sum((row["n"] - 1) * row["n"] * row["stderr"] ** 2 for row in tasks) / (group["n"] - 7)
    assert group["stderr"] == pytest.approx(math.sqrt(pooled / group["n"]))


def test_a_plain_mean_of_tasks_has_the_error_of_one():
    tasks = {name: SimpleNamespace(task_name=name) for name in "ab"}
    group = Group("both", aggregate_metric_list=[AggMetricConfig(metric="acc", weight_by_size=False)])
    group.get_all_tasks = lambda recursive=True: list(tasks.values())
    rows = [
        {"task": "a", "metric": "acc", "n": 4, "n_available": 8, "stderr": 0.3},
        {"task": "b", "metric": "acc", "n": 6, "n_available": None, "stderr": 0.4},
        {"task": "both", "metric": "acc", "n": None, "n_available": None, "stderr": None},
    ]
    complete_groups(rows, [group])
    assert (rows[2]["n"], rows[2]["n_available"], rows[2]["stderr"]) == (10, None, pytest.approx(0.25))
    rows[1]["stderr"] = rows[2]["stderr"] = None
    complete_groups(rows, [group])
    assert rows[2]["stderr"] is None


def test_the_standard_wikitext_from_local_rows(on_hub_rows):
    page = {"page": " = A rose = \n The rose is red ."}
    job = on_hub_rows("EleutherAI/wikitext_document_level/wikitext-2-raw-v1", page, "wikitext")
    found = scores(run(job, Scripted(likelihood=lambda text: -70.0)))
    # Nine words, and the empty one before the first space, which lm-eval counts.
    assert found["word_perplexity"] == pytest.approx(math.exp(70 / 10))
    assert found["byte_perplexity"] == pytest.approx(math.exp(70 / len(page["page"])))
    assert {"byte_perplexity", "bits_per_byte", "token_perplexity"} <= set(found)


def test_the_chat_template_is_applied_and_hashed(job):
    class Chat(Scripted):
        tokenizer_name = "chat"

        def __init__(self):
            super().__init__(lambda prompt: "4")
            self.tokenizer = SimpleNamespace(chat_template="{{ messages }}")

        def apply_chat_template(self, history, add_generation_prompt=True):
            return "".join(f"<{turn['role']}>{turn['content']}" for turn in history) + "<assistant>"

        def chat_template(self, chat_template=False):
            return "{{ messages }}"

    model = Chat()
    rows = [json.loads(line) for line in ARITHMETIC.read_text().splitlines()][:2]
    outcome = run(job("arithmetic_boxed", rows, apply_chat_template=True), model)
    assert all(p.startswith("<user>") and p.endswith("<assistant>") for p in model.asked)
    assert all(p.count("<assistant>") > 1 for p in model.asked), "examples are turns"
    assert {len(row["chat_template_sha256"]) for row in outcome.rows} == {64}


def test_examples_are_no_test_rows():
    shown = read_task(shipped_tasks()["arithmetic_boxed"]).config["fewshot_config"]["samples"]
    assert not {row["problem"] for row in shown} & {
        json.loads(line)["problem"] for line in ARITHMETIC.read_text().splitlines()
    }


def test_perplexities_by_word_byte_and_token(job):
    texts = ["one two three", "vier fünf"]
    outcome = run(
        job("heldout_perplexity", [{"text": t} for t in texts]), Scripted(likelihood=lambda t: -10.0 * len(t.split()))
    )
    found = scores(outcome)
    e10 = math.exp(10)
    assert found["word_perplexity"] == pytest.approx(e10)
    assert found["token_perplexity"] == pytest.approx(e10)
    length = sum(len(t.encode()) for t in texts)
    assert found["bits_per_byte"] == pytest.approx(50 / length / math.log(2))
    by_metric = {row["metric"]: row for row in outcome.rows}
    assert by_metric["word_perplexity"]["stderr"] == pytest.approx(0, abs=1e-6)
    assert by_metric["bits_per_byte"]["stderr"] > 0
    assert by_metric["bits_per_byte"]["higher_is_better"] is False


@pytest.mark.parametrize(("likelihood", "passed"), [(-1.0, True), (-9.0, False)])
def test_a_model_is_held_against_a_unigram_model_of_its_text(job, tmp_path, likelihood, passed):
    for name, tokens in (("train", [1, 2, 3, 4, 0] * 4), ("heldout", [1, 2, 3, 0])):
        with IndexedWriter(tmp_path / name, np.uint16) as writer:
            writer.add(np.array(tokens, np.uint16), np.array([len(tokens)]))
    asked = job("heldout_perplexity", [{"text": "a b c"}])
    rows = asked.evaluations[0].tasks[0].data
    baseline = Baseline(train=(tmp_path / "train",), heldout=(tmp_path / "heldout",), rows=rows, eod=0, vocabulary=5)
    asked = asked.model_copy(update={"subject": asked.subject.model_copy(update={"baseline": baseline})})
    outcome = run(asked, Scripted(likelihood=lambda text: likelihood * len(text.split())))
    check = next(check for check in outcome.checks if check.name == "beats_unigram")
    assert check.passed is passed
    assert check.metadata["unigram_perplexity"] == pytest.approx(4.0), "four tokens, equally often, add-one smoothed"
    cut = asked.model_copy(update={"evaluations": job("heldout_perplexity", [{"text": "a"}] * 2, limit=1).evaluations})
    assert "beats_unigram" not in {check.name for check in run(cut, Scripted()).checks}, "not the same tokens"


@pytest.mark.parametrize(("factor", "passed"), [(1.1, False), (1.3, True)])
def test_a_checkpoint_worse_than_the_one_before_warns(job, factor, passed):
    asked = job("heldout_perplexity", [{"text": "a b c"}], worse_factor=factor)
    spec = asked.evaluations[0]
    rows = run(asked, Scripted(likelihood=lambda text: -3.0)).rows
    worse = Scripted(likelihood=lambda text: -3.5)  # 3 words and tokens: perplexity e^(0.5 / 3) = 1.18 times as high
    assert "not_worse_than_before" not in {check.name for check in run(asked, worse).checks}
    before = spec.model_copy(update={"predecessor": Predecessor(step=5, rows=tuple(rows))})
    outcome = evaluate_loaded(asked, before, worse)
    check = next(check for check in outcome.checks if check.name == "not_worse_than_before")
    assert (check.passed, check.severity, check.metadata["step"]) == (passed, "WARN", 5)
    other = {**rows[0], "data_sha256": "other"}
    elsewhere = spec.model_copy(update={"predecessor": Predecessor(step=5, rows=(other,))})
    assert "not_worse_than_before" not in {c.name for c in evaluate_loaded(asked, elsewhere, worse).checks}


@pytest.mark.parametrize(("train", "seen"), [([1, 2, 3, 0], 1), ([3, 2, 1, 0], 0)])
def test_held_out_documents_are_looked_for_in_the_training_shards(job, tmp_path, train, seen):
    for name, tokens in (("train", train), ("heldout", [1, 2, 3, 0])):
        with IndexedWriter(tmp_path / name, np.uint16) as writer:
            writer.add(np.array(tokens, np.uint16), np.array([len(tokens)]))
    asked = job("heldout_perplexity", [{"text": "a b c"}])
    rows = asked.evaluations[0].tasks[0].data
    baseline = Baseline(train=(tmp_path / "train",), heldout=(tmp_path / "heldout",), rows=rows, eod=0, vocabulary=5)
    outcome = run(
        asked.model_copy(update={"subject": asked.subject.model_copy(update={"baseline": baseline})}), Scripted()
    )
    check = next(check for check in outcome.checks if check.name == "held_out_unseen")
    assert (check.passed, check.severity) == (not seen, "ERROR")
    assert check.metadata == {"documents": 1, "in_training": seen}
    assert outcome.rows[0]["contamination"] == 0.0, "three tokens are no run of thirteen"


@pytest.mark.parametrize(("train", "seen"), [([1, 2, 3, 0], 1), ([3, 2, 1, 0], 0)])
@pytest.mark.parametrize("own", [True, False])
def test_held_out_documents_of_one_corpus_are_looked_for_too(job, tmp_path, train, seen, own):
    """Of a corpus of several of the run, which is not all that it held out, and of one that it was not trained on."""
    for name, tokens in (("train", train), ("heldout", [1, 2, 3, 0]), ("rest", [4, 4, 0])):
        with IndexedWriter(tmp_path / name, np.uint16) as writer:
            writer.add(np.array(tokens, np.uint16), np.array([len(tokens)]))
    asked = job("heldout_perplexity", [{"text": "a b c"}])
    held_out = (tmp_path / "heldout", tmp_path / "rest") if own else ()
    baseline = Baseline(train=(tmp_path / "train",), heldout=held_out, rows=(), eod=0, vocabulary=5)
    [spec] = asked.evaluations
    spec = spec.model_copy(update={"heldout": (tmp_path / "heldout",)})
    asked = asked.model_copy(
        update={"subject": asked.subject.model_copy(update={"baseline": baseline}), "evaluations": (spec,)}
    )
    check = next(check for check in run(asked, Scripted()).checks if check.name == "held_out_unseen")
    assert (check.passed, check.metadata) == (not seen, {"documents": 1, "in_training": seen})
    assert check.severity == ("ERROR" if own or not seen else "WARN")


def test_a_likelihood_that_is_no_number_fails_a_blocking_check(job):
    outcome = run(job("heldout_perplexity", [{"text": "a"}, {"text": "b"}]), Scripted(likelihood=lambda _: math.nan))
    check = next(check for check in outcome.checks if check.name == "scores_finite")
    assert (check.passed, check.severity) == (False, "ERROR")
    assert "bits_per_byte = nan" in check.description


def test_the_samples_of_a_score_that_is_exactly_0_are_its_own():
    rows = [{"task": task, "metric": "acc", "value": v, "higher_is_better": True} for task, v in (("a", 0.5), ("b", 0))]
    samples = [{"task": task, "filtered_resps": ["x"], "target": "y"} for task in "aaaabb"]
    (check,) = extreme_scores(rows, samples)
    assert not check.passed
    assert [sample["task"] for sample in check.metadata["samples"]] == ["b", "b"]


def test_prompts_that_were_cut_warn():
    assert prompts_fit(0, 0) == []
    (fitting,), (cut,) = prompts_fit(0, 5), prompts_fit(2, 5)
    assert (fitting.passed, cut.passed, cut.severity) == (True, False, "WARN")
    assert cut.description.startswith("2 of 5 prompts were longer")


def test_rows_say_what_was_asked(job):
    rows = [{"problem": p, "solution": s} for p, s, *_ in MATH]
    asked = job("minerva_math_rows", rows, limit=2, num_fewshot=1, batch_size=2)
    outcome = run(asked, Scripted())
    row = outcome.rows[0]
    assert set(row) == set(COLUMNS)
    task = asked.evaluations[0].tasks[0]
    expected = {
        "model": "scripted", "step": 7, "tokens_seen": 7000, "evaluation": "mine", "task": "minerva_math_rows",
        "limit": 2, "n": 2, "n_available": 4, "num_fewshot": 1, "batch_size": 2, "model_content": "c0ffee",
        "data_sha256": task.data_sha256, "task_sha256": task.yaml_sha256, "prefix_token": "<s>", "device": "cpu",
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert row["task_version"]
    other = run(job("minerva_math_rows", rows, limit=2, num_fewshot=2), Scripted())
    assert other.rows[0]["prompt_sha256"] != row["prompt_sha256"], "another prompt is another hash"
    json.dumps(outcome.results)


def test_generation_arguments_reach_the_model(job):
    class Spy(Scripted):
        def generate_until(self, requests):
            self.arguments = [request.args[1] for request in requests]
            return super().generate_until(requests)

    model = Spy()
    run(
        job("minerva_math_rows", [{"problem": "p", "solution": r"\boxed{1}"}] * 2, generation={"max_gen_toks": 5}),
        model,
    )
    assert model.arguments[0]["max_gen_toks"] == 5
    assert model.arguments[0]["until"], "what the task declares stays"


def test_a_template_cannot_reach_the_interpreter(job, tmp_path):
    task = tmp_path / "evil.yaml"
    task.write_text(
        "task: evil\noutput_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\n"
        "doc_to_target: '{{ text.__class__.__mro__[1].__subclasses__() }}'\nmetric_list: [{metric: bits_per_byte}]\n"
    )
    with pytest.raises(Exception, match="unsafe"):
        run(job("evil.yaml", [{"text": "a"}]), Scripted())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no rows"),
        ("[1]\n", "rows.jsonl:1: expected a JSON object"),
        ('{"text": "a"}\n{"te', "rows.jsonl:2: not JSON"),
        ('{"text": "a"}\n\n{"text": "b\\ud800"}\n', r"rows.jsonl:3: 'text' holds half of a surrogate .*ud800"),
        ('{"text": "a"}\n{"text": 5}\n', "rows.jsonl:2: 'text' is int, and str in rows before"),
    ],
)
def test_bad_rows_are_named(job, tmp_path, content, message):
    asked = job("heldout_perplexity", [{"text": "a"}])
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        run(asked, Scripted())


GOOD = {"problem": "p", "solution": r"\boxed{1}"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"problem": 5}], r":1: .*cannot use this row: KeyError: 'solution'. It has the fields problem \(int\)"),
        ([GOOD, {"problem": "p"}], r":2: .*cannot use this row: AttributeError.* the fields problem \(str\);"),
        ([GOOD, {"problem": "p", "solution": None}], r":2: .*AttributeError.*problem \(str\), solution \(NoneType\);"),
    ],
)
def test_a_row_that_a_task_cannot_use_is_named(job, rows, message):
    with pytest.raises(InputError, match=rf"rows.jsonl{message}"):
        run(job("minerva_math_rows", rows), Scripted())


def test_an_error_that_is_no_rows_stays_what_it_is(job):
    def broken(_):
        raise KeyError("the model's own")

    with pytest.raises(KeyError, match="the model's own"):
        run(job("heldout_perplexity", [{"text": "a"}] * 3), Scripted(likelihood=broken))


def test_a_pair_of_surrogates_is_text(job):
    (data,) = job("heldout_perplexity", [{"text": "a \U0001f600"}]).evaluations[0].tasks[0].data
    assert "ud83d" in data.read_text()
    assert data_set([data])[0]["text"] == "a \U0001f600"


def test_a_field_that_the_first_row_lacks_is_kept(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": "1"}\n{"b": "2"}\n')
    assert list(data_set([tmp_path / "rows.jsonl"])) == [{"a": "1", "b": None}, {"a": None, "b": "2"}]


@pytest.mark.slow
def test_stock_tasks_are_found_by_name_and_absent_data_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    subject = Subject(directory=tmp_path, content="c0ffee", model="scripted")

    def asked(task):
        spec = evaluation_spec("mine", Evaluation(tasks=(task,)), subject, tmp_path / "out", {}, None)
        return EvaluateJob(subject=subject, evaluations=(spec,), work=tmp_path / "work")

    with pytest.raises(InputError, match="'no_such_task': no task"):
        asked("no_such_task")
    with pytest.raises(InputError, match=r"data set is not on this machine.*hendrycks_math"):
        run(asked("minerva_math_algebra"), Scripted())
    rows = tmp_path / "EleutherAI/hendrycks_math"  # lm-eval's own tasks read a local folder of this name
    rows.mkdir(parents=True)
    (rows / "README.md").write_text(
        "---\nconfigs:\n- config_name: algebra\n  data_files:\n  - {split: train, path: rows.jsonl}\n"
        "  - {split: test, path: rows.jsonl}\n---\n"
    )
    (rows / "rows.jsonl").write_text("".join(json.dumps({"problem": p, "solution": s}) + "\n" for p, s, *_ in MATH))
    outcome = run(asked("minerva_math_algebra"), Scripted(lambda _: final("3")))
    assert scores(outcome)["exact_match"] == 0.25
    assert outcome.rows[0]["task_version"] == "3.1"
