"""The first-token policy and the likelihoods, on a tiny model with random weights."""

import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.model import load_model, token_policy

LENGTH = 48  # context in tokens: some documents below are longer
REPETITIVE = "To be, or not to be: that is the question. " * 12
TEXTS = ["Shall I compare thee to a summer's day?", "O!", REPETITIVE]


def quiet(*_):
    pass


def rolling(model, texts=TEXTS):
    model.configure(batch_size=2, max_length=LENGTH)
    return model.loglikelihood_rolling([SimpleNamespace(args=(text,)) for text in texts])


def own_likelihood(model, tokens, prefix):
    """Every token once, given all of its window's tokens before it; windows as lm-eval cuts them."""
    total, done = 0.0, 0
    padded = [prefix, *tokens]
    while done < len(tokens):
        end = min(len(tokens), done + LENGTH)
        window = padded[max(0, end - LENGTH) : end + 1]
        with torch.no_grad():
            logits = model(torch.tensor([window[:-1]])).logits[0].float()
        scored = end - done
        targets = torch.tensor(window[-scored:])
        total += torch.log_softmax(logits[-scored:], -1).gather(1, targets[:, None]).sum().item()
        done = end
    return total


def test_likelihoods_equal_our_own_forward_pass(directory):
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokens = [tokenizer.encode(text) for text in TEXTS]
    assert max(map(len, tokens)) > 2 * LENGTH
    expected = [own_likelihood(model, of_text, prefix=0) for of_text in tokens]
    assert rolling(load_model(directory, None, "auto", "cpu", quiet)) == pytest.approx(expected, rel=1e-5)


def test_likelihoods_are_bit_equal_to_lm_evals(directory):
    plain = HFLM(
        pretrained=str(directory), dtype="auto", device="cpu", batch_size=2, max_length=LENGTH, logits_cache=False
    )
    expected = plain.loglikelihood_rolling([SimpleNamespace(args=(text,)) for text in TEXTS], disable_tqdm=True)
    assert rolling(load_model(directory, None, "auto", "cpu", quiet)) == expected


def test_repetitive_text_is_scored_rightly_where_lm_evals_cache_is_not(directory):
    cached = HFLM(pretrained=str(directory), dtype="auto", device="cpu", batch_size=2, max_length=LENGTH)
    [wrong] = cached.loglikelihood_rolling([SimpleNamespace(args=(REPETITIVE,))], disable_tqdm=True)
    [right] = rolling(load_model(directory, None, "auto", "cpu", quiet), [REPETITIVE])
    assert abs(wrong - right) > 0.1, "if lm-eval's cache scores the right positions now, it may be used again"


def test_no_second_bos_before_a_document(directory, with_bos):
    model = load_model(with_bos, None, "auto", "cpu", quiet)
    assert model.policy.tokenizer_adds == (0,)
    seen = []
    call = model._model_call

    def spy(inps, *args, **kwargs):
        seen.append(inps)
        return call(inps, *args, **kwargs)

    model._model_call = spy
    likelihoods = rolling(model)
    assert all(int(row[0]) == 0 and int(row[1]) != 0 for row in seen[0])
    assert likelihoods == rolling(load_model(directory, None, "auto", "cpu", quiet))
    doubled = HFLM(pretrained=str(with_bos), dtype="auto", device="cpu", batch_size=2, max_length=LENGTH)
    wrong = doubled.loglikelihood_rolling([SimpleNamespace(args=(text,)) for text in TEXTS], disable_tqdm=True)
    assert abs(wrong[0] - likelihoods[0]) > 1, "lm-eval alone puts two; if it no longer does, the policy can go"


def test_a_prompt_has_the_tokenizers_one_bos(with_bos):
    model = load_model(with_bos, None, "auto", "cpu", quiet)
    rolling(model)
    tokens, _ = model.tok_batch_encode(["a rose"])
    assert tokens[0].tolist().count(0) == 1


@pytest.mark.parametrize("prefix", [None, 5])
def test_a_prompt_that_has_a_bos_as_chat_templates_write_it_gets_no_second_one(with_bos, prefix):
    model = load_model(with_bos, prefix, "auto", "cpu", quiet)
    model.configure(2, LENGTH)
    assert model.policy.prefix_id == (prefix or 0), "what stands before documents need not be the BOS"
    context, continuation = model._encode_pair("<|endoftext|>a rose", " is")
    assert [*context, *continuation].count(0) == 1
    context, continuation = model._encode_pair("a rose", " is")
    assert [*context, *continuation].count(0) == 1


def test_declared_prefix_is_used(directory):
    a, b = (load_model(directory, prefix, "auto", "cpu", quiet) for prefix in (None, "the"))
    assert (a.policy.prefix_source, b.policy.prefix_source) == ("bos", "declared")
    assert rolling(a, ["A rose"]) != rolling(b, ["A rose"])
    assert load_model(directory, 5, "auto", "cpu", quiet).policy.prefix_id == 5


def tokenizer(**changes):
    methods = {
        "name_or_path": "tok",
        "bos_token_id": None,
        "eos_token_id": 2,
        "get_vocab": lambda: {"a": 0, "b": 1, "<eos>": 2, "<far>": 70},
        "encode": lambda text, add_special_tokens=True: [0],
        "convert_ids_to_tokens": lambda id: ["a", "b", "<eos>"][id],
    }
    return SimpleNamespace(**{**methods, **changes})


def test_policy_falls_back_to_eos():
    policy = token_policy(tokenizer(), None, 3)
    assert (policy.prefix, policy.prefix_source) == ("<eos>", "eos")


@pytest.mark.parametrize(
    ("tok", "declared", "message"),
    [
        (tokenizer(), "<eod>", "no token '<eod>'"),
        (tokenizer(), "<far>", "outside the model's 3 embeddings"),
        (tokenizer(), 3, "outside the model's 3 embeddings"),
        (tokenizer(eos_token_id=None), None, "neither bos nor eos"),
        (tokenizer(encode=lambda _, add_special_tokens=True: [2, 2, 0] if add_special_tokens else [0]), None, "adds 2"),
    ],
)
def test_policy_refuses_what_would_score_wrongly(tok, declared, message):
    with pytest.raises(InputError, match=message):
        token_policy(tok, declared, 3)


def test_unloadable_directories_are_named(tmp_path, directory):
    with pytest.raises(InputError, match="cannot load this model"):
        load_model(tmp_path, None, "auto", "cpu", quiet)
    broken = tmp_path / "broken"
    shutil.copytree(directory, broken)
    (broken / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(InputError, match="broken"):
        load_model(broken, None, "auto", "cpu", quiet)


def test_progress_counts_windows(directory):
    reports = []
    rolling(load_model(directory, None, "auto", "cpu", lambda *report: reports.append(report)))
    tokens = AutoTokenizer.from_pretrained(directory)
    windows = sum(math.ceil(len(tokens.encode(text)) / LENGTH) for text in TEXTS)
    assert reports[0] == ("loglikelihood_rolling", 0, windows)
    assert reports[-1] == ("loglikelihood_rolling", windows, windows)


def test_prompts_that_lm_eval_cuts_are_counted(directory):
    model = load_model(directory, None, "auto", "cpu", quiet)
    model.configure(batch_size=1, max_length=LENGTH)
    whole = model.tok_encode(REPETITIVE)
    widths = []
    generate, call = model._model_generate, model._model_call
    model._model_generate = lambda context, *a, **k: widths.append(context.shape[1]) or generate(context, *a, **k)
    model._model_call = lambda inps, *a, **k: widths.append(inps.shape[1]) or call(inps, *a, **k)

    def cut(ask, *requests):
        model.prompts = model.prompts_cut = 0
        widths.clear()
        ask([SimpleNamespace(args=request) for request in requests])
        return model.prompts_cut

    def text(tokens):
        found = model.tok_decode(whole[:tokens])
        assert len(model.tok_encode(found)) == tokens
        return found

    setting = {"max_gen_toks": 8, "until": ["?"]}
    assert cut(model.generate_until, (text(LENGTH - 8), setting)) == 0
    assert cut(model.generate_until, (text(LENGTH - 7), setting), ("a", setting)) == 1
    assert (model.prompts, max(widths)) == (2, LENGTH - 8)
    continuations = [text(tokens).removeprefix(text(LENGTH)) for tokens in (LENGTH + 1, LENGTH + 2)]
    assert [cut(model.loglikelihood, (text(LENGTH), continuation)) for continuation in continuations] == [0, 1]
    assert widths == [LENGTH]
    with pytest.raises(InputError, match="answers of up to 48 tokens do not fit into a context of 48"):
        cut(model.generate_until, ("a", {"max_gen_toks": LENGTH}))
