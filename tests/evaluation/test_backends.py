"""Other ways to the same answers: several processes, answers kept from before, a server of completions."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.answers import Answers, delete_answers
from pamp_pipelines.evaluation.backends import _devices, load_for
from pamp_pipelines.evaluation.helpers import Helpers, Loading
from pamp_pipelines.evaluation.model import load_model
from pamp_pipelines.evaluation.spec import EvaluateJob, Subject, evaluation_spec

TEXTS = ["Shall I compare thee to a summer's day?", "O!", "To be, or not to be: that is the question. " * 8, "A rose."]
LENGTH = 48


def requests(*arguments):
    return [SimpleNamespace(args=of_one) for of_one in arguments]


ROLLING = requests(*((text,) for text in TEXTS))
CHOICES = requests(*((f"The {a}", f" {b}") for a in ("moon", "fool") for b in ("and the rose", "is")))


@pytest.fixture
def directory(tiny_project):
    return tiny_project.data / "models/imported"


@pytest.fixture
def job(directory, tmp_path):
    def make(**settings):
        subject = Subject(directory=directory, content="c0ffee", model="tiny")
        (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
        declared = Evaluation(tasks=("heldout_perplexity",), max_length=LENGTH, **settings)
        rows = {"heldout_perplexity": [tmp_path / "rows.jsonl"]}
        spec = evaluation_spec("mine", declared, subject, tmp_path / "out", rows, tmp_path)
        return EvaluateJob(subject=subject, evaluations=(spec,), work=tmp_path / ".work-1", device="cpu")

    return make


def answers_of(job):
    loaded = load_for(job, job.evaluations[0], lambda *_: None)
    try:
        loaded.model.configure(job.evaluations[0].batch_size, LENGTH)
        return loaded.model.loglikelihood_rolling(ROLLING), loaded.model.loglikelihood(CHOICES)
    finally:
        loaded.close()


@pytest.mark.slow
def test_two_processes_answer_as_one(job):
    alone = answers_of(job())
    delete_answers(job().answers)
    together = answers_of(job(processes=2))
    assert together[0] == pytest.approx(alone[0], rel=1e-6)
    assert [a for a, _ in together[1]] == pytest.approx([a for a, _ in alone[1]], rel=1e-6)
    assert [greedy for _, greedy in together[1]] == [greedy for _, greedy in alone[1]]


@pytest.mark.slow
def test_a_process_that_fails_is_named(tmp_path):
    helpers = Helpers([Loading(tmp_path, None, "auto", "cpu", 1, None, "")])
    try:
        with pytest.raises(Exception, match=r"scoring process 1: InputError.*cannot load this model"):
            helpers.answer("loglikelihood_rolling", [("a",), ("b",)], (1, 8), lambda own: [0.0] * len(own))
    finally:
        helpers.close()


def test_answers_are_kept_and_asked_for_once(directory, tmp_path):
    model = load_model(directory, None, "auto", "cpu", lambda *_: None)
    model.configure(2, LENGTH)
    expected = model.loglikelihood_rolling(ROLLING), model.loglikelihood(CHOICES)
    model.keep_answers(tmp_path / "answers.db", "c0ffee")
    assert model.loglikelihood_rolling(ROLLING[:2]) == expected[0][:2], "stopped after two"
    calls = []
    call = model._model_call
    model._model_call = lambda inps, **more: calls.append(len(inps)) or call(inps, **more)
    assert model.loglikelihood_rolling(ROLLING) == pytest.approx(expected[0], rel=1e-6)
    assert calls
    calls.clear()
    assert model.loglikelihood_rolling(ROLLING) == pytest.approx(expected[0], rel=1e-6)
    assert not calls
    assert model.loglikelihood(CHOICES) == expected[1]
    calls.clear()
    assert model.loglikelihood(CHOICES) == expected[1]
    assert not calls
    model.keep_answers(tmp_path / "answers.db", "another model")
    model.loglikelihood(CHOICES)
    assert calls
    delete_answers(tmp_path / "answers.db")
    assert not list(tmp_path.iterdir())


def test_sampled_generations_are_not_kept(tmp_path):
    answers = Answers(tmp_path / "answers.db", ["model"])
    for sampled in (False, True):
        request = ("a prompt", {"do_sample": sampled})
        answers.add_partial("generate_until", request, "text")
        assert answers.known("generate_until", request) == (None if sampled else "text")


def test_batch_size_auto_is_small_on_a_cpu(directory):
    model = load_model(directory, None, "auto", "cpu", lambda *_: None)
    model.configure("auto", LENGTH)
    assert model.batch_used == 4
    assert len(model.loglikelihood(CHOICES)) == 4


@pytest.fixture
def server(directory):
    """Completions of the tiny model over loopback, as vLLM serves them: token ids in, log-probabilities of all out."""
    model = AutoModelForCausalLM.from_pretrained(directory).eval()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompts = asked["prompt"] if isinstance(asked["prompt"][0], list) else [asked["prompt"]]
            choices = [{"index": i, "logprobs": self.score(tokens)} for i, tokens in enumerate(prompts)]
            body = json.dumps({"choices": choices}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def score(self, tokens):
            with torch.no_grad():
                logs = torch.log_softmax(model(torch.tensor([tokens])).logits[0].float(), -1)
            best = [{str(int(row.argmax())): row.max().item()} for row in logs]
            of_each = [None, *(logs[i, token].item() for i, token in enumerate(tokens[1:]))]
            return {"token_logprobs": [*of_each, logs[-1].max().item()], "top_logprobs": [None, *best], "tokens": []}

        def log_message(self, *_):
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}/v1/completions"
    serving.shutdown()
    serving.server_close()


def test_a_server_of_completions_gives_the_same_likelihoods(job, server):
    served = answers_of(job(backend="local-completions", backend_arguments={"base_url": server}))
    alone = answers_of(job())
    assert served[0] == pytest.approx(alone[0], rel=1e-5)
    assert [a for a, _ in served[1]] == pytest.approx([a for a, _ in alone[1]], rel=1e-5)


def test_vllm_gets_the_first_token_the_processes_and_the_declared_arguments(job, monkeypatch):
    """Where vLLM is not installed, what lm-eval's backend for it would be asked for."""
    asked = {}

    class VLLM:
        def __init__(self, **arguments):
            asked.update(arguments)

    monkeypatch.setitem(sys.modules, "lm_eval.models.vllm_causallms", SimpleNamespace(VLLM=VLLM))
    told = job(backend="vllm", processes=4, batch_size="auto", backend_arguments={"gpu_memory_utilization": 0.8})
    model = load_for(told, told.evaluations[0], lambda *_: None).model
    assert asked == {
        "pretrained": str(told.subject.directory),
        "dtype": told.evaluations[0].dtype,
        "prefix_token_id": model.policy.prefix_id,
        "batch_size": "auto",
        "max_length": told.evaluations[0].max_length,
        "data_parallel_size": 4,
        "seed": told.evaluations[0].seed,
        "gpu_memory_utilization": 0.8,
    }
    assert model.document_length("a rose") == len(model.document_tokens("a rose")) > 0


def test_each_process_has_a_gpu_of_its_own():
    assert _devices("auto", 4, 8) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert _devices("cuda", 1, 8) == ["cuda:0"]
    assert _devices("auto", 2, 0) == _devices("cpu", 2, 8) == ["cpu", "cpu"]


def test_backends_say_what_they_lack(job):
    with pytest.raises(InputError, match="backend_arguments needs `base_url`"):
        answers_of(job(backend="local-completions"))
    with pytest.raises(InputError, match=r"backend vllm is not installed.*vllm"):
        answers_of(job(backend="vllm"))
    with pytest.raises(InputError, match=r"3 scoring processes need a GPU each, and there are 0"):
        answers_of(job(processes=3).model_copy(update={"device": "cuda"}))
