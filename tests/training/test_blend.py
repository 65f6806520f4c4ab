"""Shares of tokens, limits on epochs, and what the datasets that Megatron builds make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.tokenization.indexed import IndexedReader, IndexedWriter
from pamp_pipelines.training.blend import (
    epochs,
    read_realised,
    realised,
    weighted_shards,
    within_limits,
    write_realised,
)
from pamp_pipelines.training.job import DataPhase, TrainJob

FILE = Path("assets/training_configs/mix.yaml")
TOKENS = {"wiki": 1000, "code": 1000}
EOD = 7


def config(**changes: Any) -> TrainingConfig:
    """Forty batches of 100 tokens: 3,000 from wiki, 1,000 from code."""
    fields: dict[str, Any] = {
        "corpora": {"wiki": 3, "code": 1},
        "sequence_length": 10,
        "tokens": 4050,
        "global_batch_size": 10,
        "optimizer": {"lr": 1e-3},
        "checkpoint": {"interval": 5},
        "validation": {"interval": 5},
    }
    return TrainingConfig.model_validate(fields | changes)


def test_a_corpus_of_several_pairs_keeps_its_weight(tmp_path: Path) -> None:
    pairs = [("train_00000", 600), ("train_00001", 300), ("train_00002", 100)]
    with publish(tmp_path / "shards", kind="tokenized_shards", id="0" * 64) as draft:
        entries = [{"name": name, "documents": 1, "tokens": tokens} for name, tokens in pairs]
        draft.stats["train"] = {"documents": 3, "tokens": 1000, "pairs": entries}
    shards = weighted_shards(draft.artifact, 0.3, "wiki")
    assert [s.prefix for s in shards] == [tmp_path / "shards" / name for name, _ in pairs]
    assert [round(s.weight, 12) for s in shards] == [0.18, 0.09, 0.03]
    assert {s.corpus for s in shards} == {"wiki"}


def test_the_weight_of_a_single_pair_is_exact(tmp_path: Path) -> None:
    with publish(tmp_path / "shards", kind="tokenized_shards", id="0" * 64) as draft:
        pair = {"name": "train", "documents": 1, "tokens": 7}
        draft.stats["train"] = {"documents": 1, "tokens": 7, "pairs": [pair]}
    assert [s.weight for s in weighted_shards(draft.artifact, 0.3)] == [0.3]


def test_epochs_are_of_tokens() -> None:
    assert epochs(config(), TOKENS) == {"code": 1.0, "wiki": 3.0}
    assert epochs(config(), {"wiki": 1000, "code": 100})["code"] == 10.0


def test_a_run_that_stays_within_its_limits_is_the_declared_one() -> None:
    for same in (config(), config(max_epochs={"wiki": 3, "code": 2}), config(max_epochs={"code": 1.0})):
        assert within_limits(same, TOKENS, FILE) is same


def test_an_exhausted_corpus_refuses_the_run_and_says_what_would_fit() -> None:
    with pytest.raises(InputError) as refused:
        within_limits(config(max_epochs={"wiki": 2.0, "code": 4}), TOKENS, FILE)
    assert str(refused.value) == (
        "assets/training_configs/mix.yaml: max_epochs: 40 iterations of 100 tokens would read wiki 3.00 times "
        "(max_epochs 2, 1000 tokens); 26 iterations stay within. Shorten the run, change the weights, raise "
        "`max_epochs`, or declare `on_exhausted: stop` or `repeat`."
    )


def test_an_exhausted_corpus_ends_the_run_where_that_is_declared() -> None:
    limits = {"wiki": 2.0, "code": 0.5}
    shorter = within_limits(config(max_epochs=limits, on_exhausted="stop"), TOKENS, FILE)
    assert (shorter.train_iterations, shorter.tokens) == (20, None)  # code is exhausted first
    assert all(times <= limits[corpus] for corpus, times in epochs(shorter, TOKENS).items())
    again = config(max_epochs=limits, on_exhausted="repeat")
    assert within_limits(again, TOKENS, FILE) is again
    with pytest.raises(InputError, match="0 iterations stay within"):
        within_limits(config(max_epochs={"wiki": 0.01}, on_exhausted="stop"), TOKENS, FILE)


def test_a_limit_of_a_corpus_that_is_not_in_the_blend_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"max_epochs\n.*wkii: is no corpus of the blend"):
        config(max_epochs={"wkii": 2})


@pytest.fixture
def job(make_job: Callable[..., TrainJob], tmp_path: Path) -> TrainJob:
    """Three pairs of two corpora, of documents of eleven tokens whose last ends them."""
    shards = {"wiki_0": 300, "wiki_1": 100, "code_0": 60}
    for name, documents in shards.items():
        with IndexedWriter(tmp_path / name, np.uint16) as writer:
            for document in range(documents):
                tokens = np.append(np.full(10, 10 + document % 100), EOD).astype(np.uint16)
                writer.add(tokens, np.array([len(tokens)]))
    weights = {"wiki_0": 0.6, "wiki_1": 0.2, "code_0": 0.2}
    return make_job(
        train=[{"corpus": n.partition("_")[0], "prefix": tmp_path / n, "weight": w} for n, w in weights.items()],
        eod_id=EOD,
        sequence_length=16,
        iterations=50,
        global_batch_size=4,
    )


def build(job: TrainJob, index: Path, samples: int = 200) -> Any:
    from pamp_pipelines.training.data import blended

    tokenizer = SimpleNamespace(eod=EOD, pad=-1, vocab_size=128, unique_identifiers={"class": "null"})
    return blended(job, samples, tokenizer, index)


@pytest.mark.slow
def test_data_phases_come_one_after_the_other_each_in_its_own_order(job: TrainJob, tmp_path: Path) -> None:
    from pamp_pipelines.training.data import PhasedSamples

    seeds = {"first": job.data_seed, "second": job.data_seed + 1}
    orders = [build(job.model_copy(update={"data_seed": s}), tmp_path / name, 100) for name, s in seeds.items()]
    phases = [DataPhase(first_sample=100 * n, samples=100, seed=s) for n, s in enumerate(seeds.values())]
    samples = PhasedSamples(orders, phases)
    assert len(samples) == 200
    for index in (0, 99, 100, 199):
        assert np.array_equal(samples[index]["tokens"], orders[index // 100][index % 100]["tokens"])
    assert any(not np.array_equal(samples[n]["tokens"], samples[100 + n]["tokens"]) for n in range(100))


@pytest.mark.slow
def test_megatron_draws_tokens_by_weight_and_what_it_drew_is_counted(job: TrainJob, tmp_path: Path) -> None:
    from pamp_pipelines.training.data import drawn

    dataset = build(job, tmp_path / "index")
    samples = drawn(dataset, 200)
    assert samples == [120, 40, 40]  # tokens by weight, although wiki_1 has a third of wiki_0's documents
    found = realised(job, samples, [len(IndexedReader(shards.prefix).tokens) for shards in job.train])
    assert found == {
        "wiki": {"samples": 160, "tokens": 2560, "epochs": round(2560 / 4400, 4)},
        "code": {"samples": 40, "tokens": 640, "epochs": round(640 / 660, 4)},
    }
    assert read_realised(job) == {}
    write_realised(job, found)
    assert read_realised(job) == found
    # an index that is there is read and not written
    for file in (tmp_path / "index").iterdir():
        file.chmod(0o444)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "index").iterdir()}
    again = build(job, tmp_path / "index")
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "index").iterdir()} == before
    assert all(np.array_equal(again[i]["tokens"], dataset[i]["tokens"]) for i in range(0, 200, 7))
    single = job.model_copy(update={"train": job.train[:1]})
    assert drawn(build(single, tmp_path / "single", 50), 50) == [50]


@pytest.mark.slow
def test_the_order_of_the_data_is_that_of_the_data_seed_alone(job: TrainJob, tmp_path: Path) -> None:
    def order(index: str, **seeds: int) -> list[int]:
        dataset = build(job.model_copy(update=seeds), tmp_path / index)
        return [int(dataset[i]["tokens"][0]) for i in range(100)]

    first = order("a")
    assert order("b", seed=99) == first
    assert order("c", data_seed=99) != first


@pytest.mark.slow
def test_attention_to_earlier_documents_is_cut_in_the_batch_where_that_is_declared(
    job: TrainJob, tmp_path: Path
) -> None:
    cross = build(job, tmp_path / "cross")
    masked = build(job.model_copy(update={"document_attention": "masked"}), tmp_path / "masked")
    for number in range(20):
        seen, cut = cross[number], masked[number]
        assert np.array_equal(seen["tokens"], cut["tokens"])
        ends = seen["tokens"].numpy() == EOD
        assert 1 <= ends.sum() <= 2
        assert seen["position_ids"].tolist() == list(range(16))
        assert seen["loss_mask"].min() == 1.0
        # nothing is predicted from the end of a document, and positions begin again after it
        np.testing.assert_array_equal(cut["loss_mask"].numpy(), (~ends).astype(np.float32))
        after = np.flatnonzero(ends[:-1]) + 1
        assert set(np.flatnonzero(cut["position_ids"].numpy() == 0)) == {0, *after}


@pytest.mark.slow
def test_packed_samples_attend_within_their_documents_only() -> None:
    import torch

    from pamp_pipelines.training.forward import _packed
    from pamp_pipelines.training.layers import TorchAttention

    torch.manual_seed(0)
    positions_BS = torch.tensor([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
    batch = {name: torch.arange(10).reshape(2, 5) for name in ("tokens", "labels", "loss_mask")}
    packed = _packed({**batch, "position_ids": positions_BS})
    documents = packed["documents"]
    assert packed["tokens"].tolist() == [list(range(10))]
    assert documents.cu_seqlens_q.tolist() == documents.cu_seqlens_kv.tolist() == [0, 3, 5, 6, 10]
    assert documents.max_seqlen_q == 5
    query_TND, key_TGD, value_TGD = torch.randn(10, 4, 8), torch.randn(10, 2, 8), torch.randn(10, 2, 8)
    settings = SimpleNamespace(kv_channels=8, attention_dropout=0.0, window_size=None, window_attn_skip_freq=None)
    from megatron.core.transformer.enums import AttnMaskType

    attend = TorchAttention(settings, 1, AttnMaskType.causal, "self")
    context_TH = attend(query_TND, key_TGD, value_TGD, None, packed_seq_params=documents)
    assert context_TH.shape == (10, 32)
    for start, end in ((0, 3), (3, 5), (5, 6), (6, 10)):
        part = slice(start, end)
        alone_SBH = attend(query_TND[part, None], key_TGD[part, None], value_TGD[part, None], None)
        torch.testing.assert_close(context_TH[part], alone_SBH[:, 0])
    whole_SBH = attend(query_TND[:, None], key_TGD[:, None], value_TGD[:, None], None)
    assert not torch.allclose(context_TH[3:], whole_SBH[3:, 0])
