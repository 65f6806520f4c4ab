"""How many rows go through a GPU at once: the arithmetic, and a model whose memory ends."""

from types import SimpleNamespace

import pytest
import torch

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation import batching
from pamp_pipelines.evaluation import model as model_module
from pamp_pipelines.evaluation.batching import MAX_ROWS, auto_rows, dealt_evenly, halving, rows_that_fit
from pamp_pipelines.evaluation.model import load_model

MIB = 1024**2
CHOICES = [SimpleNamespace(args=(f"The {a}", f" {b}")) for a in ("moon", "fool", "rose") for b in ("sings", "is")]


def memory_ends(above):
    def ask(rows):
        if rows > above:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return f"answers by {rows}"

    return ask


@pytest.fixture
def model(tiny_project):
    loaded = load_model(tiny_project.data / "models/imported", None, "auto", "cpu", lambda *_: None)
    loaded.configure("auto", 48)
    return loaded


def test_rows_are_free_memory_over_what_one_takes():
    asked = []

    def peak(rows):
        asked.append(rows)
        return rows * 10 * MIB

    assert rows_that_fit(peak, lambda: 1000 * MIB) == 80
    assert asked == [2, 2], "the first run takes the workspaces of libraries, too"
    assert rows_that_fit(peak, lambda: 10**6 * MIB) == MAX_ROWS
    assert rows_that_fit(peak, lambda: 5 * MIB) == 1
    assert rows_that_fit(memory_ends(above=1), lambda: 1000 * MIB) == 1


@pytest.mark.parametrize(("requests", "rows", "expected"), [(300, 256, 150), (24, 256, 24), (257, 64, 52), (1, 8, 1)])
def test_batches_are_about_equally_large(requests, rows, expected):
    assert dealt_evenly(requests, rows) == expected
    assert -(-requests // expected) == -(-requests // rows), "and no more of them than before"


def test_a_batch_that_does_not_fit_is_halved():
    assert halving(memory_ends(above=20), 100, "texts") == ("answers by 13", 13)
    with pytest.raises(InputError, match=r"a batch of 1 \(texts\) does not fit.*max_length"):
        halving(memory_ends(above=0), 4, "texts")


def test_the_longest_request_is_measured_in_tokens_with_its_answer(model, monkeypatch):
    lengths = []
    monkeypatch.setattr(batching, "_peak", lambda model, kind, rows, length: lengths.append(length) or MIB)
    monkeypatch.setattr(batching, "_free", lambda device: 40 * MIB)
    prompts = [SimpleNamespace(args=(text, {"max_gen_toks": 5})) for text in ("a rose", "O", "by any other name")]
    longest = len(model.tok_encode("by any other name"))
    assert auto_rows(model, "generate_until", prompts) == 3
    assert auto_rows(model, "loglikelihood", CHOICES) == 64
    assert auto_rows(model, "loglikelihood_rolling", [SimpleNamespace(args=("word " * 500,))]) == 64
    assert [lengths[0], lengths[-1]] == [longest + 5 + 1, 48], "of a long document one window"
    monkeypatch.setattr(batching, "TOKENS_AT_ONCE", 480)
    assert auto_rows(model, "loglikelihood_rolling", [SimpleNamespace(args=("word " * 500,))]) == 10


def test_a_model_answers_in_batches_that_fit_and_says_which(model, monkeypatch):
    expected = model.loglikelihood(CHOICES)
    call, seen = model._model_call, []

    def two_rows_fit(inps, **more):
        if len(inps) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        seen.append(len(inps))
        return call(inps, **more)

    monkeypatch.setattr(model, "_model_call", two_rows_fit)
    monkeypatch.setattr(model, "_auto", True)
    monkeypatch.setattr(model_module, "auto_rows", lambda model, kind, requests: len(requests))
    assert model.batch_used is None
    found = model.loglikelihood(CHOICES)
    assert [a for a, _ in found] == pytest.approx([a for a, _ in expected], rel=1e-6)
    assert (max(seen), model.batch_used) == (2, 2)
    model.configure(6, 48)
    with pytest.raises(InputError, match=r"a batch of 6 .*lower `batch_size`"):
        model.loglikelihood(CHOICES)


@pytest.mark.parametrize("kind", ["generate_until", "loglikelihood", "loglikelihood_rolling"])
def test_rows_as_long_as_the_longest_request_are_run(model, monkeypatch, kind):
    """The run itself, on a CPU whose memory is said to be a GPU's."""
    shapes = []
    forward = model.model.forward

    def spy(*args, **more):
        tokens = more.get("input_ids", args[0] if args else None)
        shapes.append(tuple(tokens.shape))
        return forward(*args, **more)

    monkeypatch.setattr(model.model, "forward", spy)
    for name, value in {
        "reset_peak_memory_stats": None,
        "memory_allocated": 100 * MIB,
        "max_memory_allocated": 102 * MIB,
        "memory_reserved": 110 * MIB,
        "mem_get_info": (30 * MIB, 200 * MIB),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda _device, value=value: value)
    requests = {
        "generate_until": [SimpleNamespace(args=("a rose " * 30, {"max_gen_toks": 5}))] * 100,
        "loglikelihood": [SimpleNamespace(args=("a rose " * 30, "is"))] * 100,
        "loglikelihood_rolling": [SimpleNamespace(args=("a rose " * 30,))] * 100,
    }[kind]
    # two rows take 2 MiB of the 40 that are free, of which a fifth is left
    assert auto_rows(model, kind, requests) == (25 if kind == "generate_until" else 32)
    assert set(shapes) == {(2, 48)}
