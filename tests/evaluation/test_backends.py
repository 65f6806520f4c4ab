"""Other ways to the same answers: several processes, answers kept from before, a server of completions."""

import ast
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.answers import Answers, delete_answers
from pamp_pipelines.evaluation.backends import _devices, _setting, load_for
from pamp_pipelines.evaluation.harness import evaluate_loaded
from pamp_pipelines.evaluation.helpers import Helpers, Loading
from pamp_pipelines.evaluation.model import load_model
from pamp_pipelines.evaluation.spec import EvaluateJob, Subject, evaluation_spec

TEXTS = ["Shall I compare thee to a summer's day?", "O!", "To be, or not to be: that is the question. " * 8, "A rose."]
LENGTH = 48
ARITHMETIC = Path(__file__).parents[2] / "data/arithmetic/add1.jsonl"


def requests(*arguments):
    return [SimpleNamespace(args=of_one) for of_one in arguments]


ROLLING = requests(*((text,) for text in TEXTS))
CHOICES = requests(*((f"The {a}", f" {b}") for a in ("moon", "fool") for b in ("and the rose", "is")))


@pytest.fixture
def job(directory, tmp_path):
    def make(model=directory, task="heldout_perplexity", rows='{"text": "a"}\n', **settings):
        subject = Subject(directory=model, content="c0ffee", model="tiny")
        (tmp_path / "rows.jsonl").write_text(rows)
        declared = Evaluation(tasks=(task,), **{"max_length": LENGTH} | settings)
        spec = evaluation_spec("mine", declared, subject, tmp_path / "out", {task: [tmp_path / "rows.jsonl"]}, tmp_path)
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


def test_a_generation_with_a_temperature_is_not_kept(tmp_path):
    answers = Answers(tmp_path / "answers.db", ["model"])
    for request in (("a prompt", {"temperature": 0.7}), ("a prompt", {"do_sample": False, "temperature": 0.7})):
        answers.add_partial("generate_until", request, "text")
        assert answers.known("generate_until", request) is None


def test_kept_answers_of_one_server_are_not_those_of_another(job, serve, directory):
    """Two evaluations of one job differ in their servers alone: another model may stand behind the second."""
    first, second = serve(directory), serve(directory)
    with torch.no_grad():
        second.model.get_input_embeddings().weight.mul_(2)
    of_first = answers_of(job(**at(first)))
    asked = len(first.prompts)
    of_second = answers_of(job(**at(second)))
    assert len(second.prompts) == asked, "asked itself"
    assert of_second != of_first
    assert answers_of(job(**at(first))) == of_first
    assert len(first.prompts) == asked, "its own are found"
    named = job(**at(first, model="other"))
    answers_of(named)
    assert len(first.prompts) == 2 * asked
    delete_answers(named.answers)


def test_the_setting_of_kept_answers_holds_the_backend(job):
    settings = [job(), job(backend="vllm"), job(backend="vllm", backend_arguments={"quantization": "fp8"})]
    assert len({_setting(told, told.evaluations[0]) for told in settings}) == 3
    assert _setting(job(), job().evaluations[0]) == _setting(job(), job(limit=3).evaluations[0])


def test_batch_size_auto_is_small_on_a_cpu(directory):
    model = load_model(directory, None, "auto", "cpu", lambda *_: None)
    model.configure("auto", LENGTH)
    assert model.batch_used == 4
    assert len(model.loglikelihood(CHOICES)) == 4


class Completions(BaseHTTPRequestHandler):
    """Completions of a model over loopback, as vLLM serves them: token ids in, text or log-probabilities of all out."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompts = asked["prompt"] if isinstance(asked["prompt"][0], list) else [asked["prompt"]]
        self.server.prompts += prompts
        answer = self.score if asked.get("echo") else self.generate
        longest = max(len(tokens) for tokens in prompts) + asked["max_tokens"]
        status, reply = 200, {"choices": [{"index": i, **answer(tokens, asked)} for i, tokens in enumerate(prompts)]}
        if longest > self.server.context:
            status, reply = 400, {"error": f"context of {self.server.context} exceeded: {longest}"}
        body = json.dumps(reply).encode()
        kind = "application/json"
        if self.server.instead is not None:
            kind, body = self.server.instead(reply)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def score(self, tokens, _):
        with torch.no_grad():
            logs = torch.log_softmax(self.server.model(torch.tensor([tokens])).logits[0].float(), -1)
        best = [{str(int(row.argmax())): row.max().item()} for row in logs]
        of_each = [None, *(logs[i, token].item() for i, token in enumerate(tokens[1:]))]
        of_all = {"token_logprobs": [*of_each, logs[-1].max().item()], "top_logprobs": [None, *best], "tokens": []}
        return {"logprobs": of_all}

    def generate(self, tokens, asked):
        assert asked["temperature"] == 0
        model, tokenizer = self.server.model, self.server.tokenizer
        row = torch.tensor([tokens])
        found = model.generate(row, max_new_tokens=asked["max_tokens"], do_sample=False, pad_token_id=0)
        text = tokenizer.decode(found[0, len(tokens) :])
        for stop in filter(None, asked["stop"]):
            text = text.split(stop)[0]
        return {"text": text}

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """Starts a server of a model's directory: `prompts` is what it was sent, `context` how much it takes."""
    running = []

    def start(directory, context=2048):
        serving = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
        serving.model = AutoModelForCausalLM.from_pretrained(directory).eval()
        serving.tokenizer = AutoTokenizer.from_pretrained(directory)
        serving.context, serving.prompts, serving.instead = context, [], None
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        running.append(serving)
        return serving

    yield start
    for serving in running:
        serving.shutdown()
        serving.server_close()


def at(server, **more):
    address = f"http://127.0.0.1:{server.server_port}/v1/completions"
    return {"backend": "local-completions", "backend_arguments": {"base_url": address, "max_retries": 1, **more}}


@pytest.mark.parametrize(("tokenizer", "concurrent"), [("directory", 1), ("with_bos", 1), ("with_bos", 2)])
def test_a_server_of_completions_gives_the_same_likelihoods(job, serve, tokenizer, concurrent, request):
    """Of prompts with the tokenizer's own BOS, once, and of documents without."""
    model = request.getfixturevalue(tokenizer)
    served = answers_of(job(model, **at(serve(model), num_concurrent=concurrent)))
    delete_answers(job().answers)
    alone = answers_of(job(model))
    assert served[0] == pytest.approx(alone[0], rel=1e-5)
    assert [a for a, _ in served[1]] == pytest.approx([a for a, _ in alone[1]], rel=1e-5)
    delete_answers(job().answers)


def test_an_evaluation_over_a_server_has_the_scores_of_one_without(job, serve, with_bos):
    """Generation by a task with a chat-like prompt; what was answered once is not asked again."""
    rows = ARITHMETIC.read_text()
    server = serve(with_bos, context=400)
    found = {}
    for name, settings in (("hf", {}), ("served", at(server))):
        told = job(with_bos, "arithmetic_boxed", rows, limit=4, batch_size=2, max_length=400, **settings)
        loaded = load_for(told, told.evaluations[0], lambda *_: None)
        found[name] = evaluate_loaded(told, told.evaluations[0], loaded.model)
        if name == "hf":
            delete_answers(told.answers)
    assert all(next(c for c in outcome.checks if c.name == "prompts_fit").passed for outcome in found.values())
    answers = [[sample["resps"] for sample in outcome.samples] for outcome in found.values()]
    assert answers[0] == answers[1]
    values = [{row["metric"]: row["value"] for row in outcome.rows} for outcome in found.values()]
    assert values[0] == values[1]
    assert {row["device"] for row in found["served"].rows} == {"server"}
    assert [tokens[:2].count(0) for tokens in server.prompts] == [1] * 4
    evaluate_loaded(told, told.evaluations[0], loaded.model)
    assert len(server.prompts) == 4
    delete_answers(told.answers)


@pytest.mark.parametrize("concurrent", [1, 2])
def test_a_server_that_is_not_there_is_named(job, serve, directory, concurrent):
    gone = serve(directory)
    gone.shutdown()
    gone.server_close()
    with pytest.raises(InputError, match=rf"127.0.0.1:{gone.server_port}/.*no completions from this server"):
        answers_of(job(**at(gone, num_concurrent=concurrent)))


def test_a_server_that_does_not_answer_is_named_with_its_words(job, serve, directory):
    small = serve(directory, context=20)
    with pytest.raises(InputError, match=rf"127.0.0.1:{small.server_port}/.*context of 20 exceeded.*max_length"):
        answers_of(job(**at(small)))


def choices(change):
    return lambda reply: ("application/json", json.dumps({"choices": change(reply["choices"])}).encode())


@pytest.mark.parametrize("concurrent", [1, 2])
@pytest.mark.parametrize(
    ("instead", "sentence"),
    [
        (choices(lambda found: found[:-1]), r"choices for \d prompts"),
        (choices(lambda found: []), "0 choices for"),
        (choices(lambda found: [*found, found[0]]), r"choices for \d prompts"),
        (choices(lambda found: None), "no list of `choices`"),
        (lambda _: ("application/json", b"[]"), "no list of `choices`"),
        (lambda _: ("application/json", b'{"choices": [3]}'), "no list of `choices`"),
        (lambda _: ("text/html", b"<html>"), r"not in JSON .*/v1/completions"),
        (lambda _: ("application/json", b"<html>"), r"not in JSON .*/v1/completions"),
        (choices(lambda found: [{**c, "logprobs": None} for c in found]), "no `logprobs`"),
        (
            choices(lambda found: [{**c, "logprobs": {"token_logprobs": [-1], "top_logprobs": [{}]}} for c in found]),
            "of 1 tokens where",
        ),
        (
            choices(
                lambda found: [
                    {**c, "logprobs": dict.fromkeys(c["logprobs"], [None] * len(c["logprobs"]["top_logprobs"]))}
                    for c in found
                ]
            ),
            "gaps|tokens where",
        ),
    ],
)
def test_a_server_that_answers_something_else_is_named(job, serve, directory, concurrent, instead, sentence):
    server = serve(directory)
    server.instead = instead
    with pytest.raises(InputError, match=rf"127.0.0.1:{server.server_port}/.*{sentence}"):
        answers_of(job(batch_size=2, **at(server, num_concurrent=concurrent)))


@pytest.mark.parametrize("concurrent", [1, 2])
def test_no_text_is_no_answer(job, serve, directory, concurrent):
    server = serve(directory)
    server.instead = choices(lambda found: [{**choice, "text": None} for choice in found])
    told = job(batch_size=2, **at(server, num_concurrent=concurrent))
    model = load_for(told, told.evaluations[0], lambda *_: None).model
    prompts = requests(*((text, {"until": ["."], "max_gen_toks": 2}) for text in TEXTS[:2]))
    with pytest.raises(InputError, match="`text` is None"):
        model.generate_until(prompts)
    server.instead = None
    assert [type(text) for text in model.generate_until(prompts)] == [str, str], "nothing was kept"
    delete_answers(told.answers)


def test_vllm_gets_the_first_token_the_processes_and_the_declared_arguments(job, with_bos, monkeypatch):
    """Where vLLM is not installed, what lm-eval's backend for it would be asked for."""
    asked = {}

    class VLLM:
        def __init__(self, **arguments):
            asked.update(arguments)
            self.tokenizer = AutoTokenizer.from_pretrained(arguments["pretrained"])

        def tok_encode(self, string, add_special_tokens=None):
            return self.tokenizer.encode(string, add_special_tokens=add_special_tokens is not False)

        def loglikelihood_rolling(self, requests, disable_tqdm):
            assert self.add_bos_token is False, "documents get no BOS"
            return [-1.0 for _ in requests]

    monkeypatch.setitem(sys.modules, "lm_eval.models.vllm_causallms", SimpleNamespace(VLLM=VLLM))
    told = job(
        with_bos, backend="vllm", processes=4, batch_size="auto", backend_arguments={"gpu_memory_utilization": 0.8}
    )
    model = load_for(told, told.evaluations[0], lambda *_: None).model
    assert asked == {
        "pretrained": str(with_bos),
        "dtype": told.evaluations[0].dtype,
        "prefix_token_id": model.policy.prefix_id,
        "batch_size": "auto",
        "max_length": LENGTH + 2,  # lm-eval keeps two of them for itself
        "data_parallel_size": 4,
        "seed": told.evaluations[0].seed,
        "gpu_memory_utilization": 0.8,
    }
    assert model.document_length("a rose") == len(model.document_tokens("a rose")) > 0
    model.max_length = LENGTH
    assert model.loglikelihood_rolling(ROLLING) == [-1.0] * len(ROLLING)
    assert model.add_bos_token is None
    assert [row.count(0) for row in model.tok_encode(["a rose", "<|endoftext|>a rose"])] == [1, 1]
    delete_answers(told.answers)


def test_lm_evals_vllm_backend_takes_what_it_is_given():
    """Read, not imported: it imports vLLM at once."""
    import lm_eval.models

    tree = ast.parse((Path(lm_eval.models.__file__).parent / "vllm_causallms.py").read_text())
    [backend] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "VLLM"]
    methods = {node.name: node.args for node in backend.body if isinstance(node, ast.FunctionDef)}
    taken = {argument.arg for argument in methods["__init__"].args}
    given = {"pretrained", "dtype", "prefix_token_id", "batch_size", "max_length", "data_parallel_size", "seed"}
    assert given <= taken
    assert {"tok_encode", "loglikelihood_rolling", "generate_until"} <= set(methods)
    assert [argument.arg for argument in methods["loglikelihood_rolling"].args][:3] == [
        "self",
        "requests",
        "disable_tqdm",
    ]


def test_each_process_has_a_gpu_of_its_own():
    assert _devices("auto", 4, 8) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert _devices("cuda", 1, 8) == ["cuda:0"]
    assert _devices("auto", 2, 0) == _devices("cpu", 2, 8) == ["cpu", "cpu"]


def test_backends_say_what_they_lack(job, monkeypatch):
    with pytest.raises(InputError, match="backend_arguments needs `base_url`"):
        answers_of(job(backend="local-completions"))
    monkeypatch.setitem(sys.modules, "pamp_pipelines.evaluation.served", None)  # as where its imports fail
    with pytest.raises(InputError, match=r"local-completions is not installed.*install .*'lm-eval\[api\]'"):
        answers_of(job(backend="local-completions"))
    with pytest.raises(InputError, match=r"backend vllm is not installed: No module named.*install .*vllm ray"):
        answers_of(job(backend="vllm"))
    with pytest.raises(InputError, match=r"3 scoring processes need a GPU each, and there are 0"):
        answers_of(job(processes=3).model_copy(update={"device": "cuda"}))
