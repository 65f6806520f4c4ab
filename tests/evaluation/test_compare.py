import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from pamp_pipelines.cli import pamp
from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.compare import compare, influences, paired_error, scores_of
from pamp_pipelines.evaluation.stderr import standard_error
from pamp_pipelines.evaluation.values import VALUES, Values, contributions, read_values, write_values
from pamp_pipelines.lake.store import CheckpointKey

A, B = CheckpointKey("tiny", "poems", 1, 0), CheckpointKey("tiny", "poems", 1, 50)


def values(numbers, weights=None, names=None):
    return Values(
        tuple(names or map(str, range(len(numbers)))),
        np.asarray(numbers, float),
        None if weights is None else np.asarray(weights, float),
    )


def documents(count, seed, shift=0.0):
    random = np.random.default_rng(seed)
    words = random.integers(5, 400, count)
    return -words * (random.normal(4, 0.8, count) + shift), words


@pytest.mark.parametrize("metric", ["exact_match", "word_perplexity", "bits_per_byte"])
def test_influences_give_the_standard_error(metric):
    logs, words = documents(60, 0)
    of = values(np.arange(60) % 3 == 0) if metric == "exact_match" else values(logs, words)
    samples = of.values.tolist() if of.weights is None else list(zip(of.values, of.weights, strict=True))
    ratio = None if of.weights is None else of.values.sum() / of.weights.sum()
    value = of.values.mean() if ratio is None else -ratio / math.log(2) if "bits" in metric else math.exp(-ratio)
    error = math.sqrt(60 / 59 * (influences(metric, of) ** 2).sum())
    assert error == pytest.approx(standard_error(metric, value, samples))


@pytest.mark.parametrize("metric", ["word_perplexity", "bits_per_byte"])
def test_a_paired_error_is_that_of_a_bootstrap_over_documents(metric):
    logs, words = documents(300, 1)
    better = logs * 0.95 + np.random.default_rng(2).normal(0, 5, 300)

    def score(log, picked):
        ratio = log[picked].sum() / words[picked].sum()
        return -ratio / math.log(2) if metric == "bits_per_byte" else math.exp(-ratio)

    random = np.random.default_rng(3)
    picks = (random.integers(0, 300, 300) for _ in range(3000))
    resampled = [score(better, p) - score(logs, p) for p in picks]
    error = paired_error(metric, values(logs, words), values(better, words))
    assert error == pytest.approx(np.std(resampled), rel=0.06)


def test_intervals_cover_as_often_as_they_say():
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        hard = random.random(200)
        a, b = (values((random.random(200) < 0.3 + 0.5 * hard + gain).astype(float)) for gain in (0.0, 0.1))
        error = paired_error("exact_match", a, b)
        covered += abs(b.values.mean() - a.values.mean() - 0.1) <= 1.96 * error
    assert 0.92 <= covered / 400 <= 0.98


def test_other_samples_are_not_paired():
    assert paired_error("acc", values([0, 1]), values([1, 1], names=("x", "y"))) is None
    assert paired_error("acc", values([1]), values([1])) is None


def test_what_a_sample_contributes_is_kept_by_filter(tmp_path):
    samples = [
        {"task": "t", "filter": f, "doc_hash": d, "exact_match": v, "acc": 1.0, "text": ["a", "b"]}
        for f, d, v in (("strict", "x", 0.0), ("strict", "y", 1.0), ("loose", "x", 1.0))
    ] + [{"task": "p", "filter": "none", "doc_hash": "z", "bits_per_byte": [-3.0, 2]}]
    metrics = {"t": ["exact_match,strict", "exact_match,loose", "text,strict"], "p": ["bits_per_byte"]}
    write_values(tmp_path / VALUES, contributions(samples, metrics))
    found = read_values(tmp_path / VALUES)
    assert found["t", "exact_match,strict"].values.tolist() == [0.0, 1.0]
    assert found["t", "exact_match,loose"].samples == ("x",)
    assert found["p", "bits_per_byte"].weights.tolist() == [2.0]
    assert set(found) == {("t", "exact_match,strict"), ("t", "exact_match,loose"), ("p", "bits_per_byte")}
    assert read_values(tmp_path / "none") == {}
    (tmp_path / VALUES).write_bytes(b"half")
    with pytest.raises(InputError, match=r"values\.parquet: not a readable"):
        read_values(tmp_path / VALUES)


@pytest.fixture
def two(builder):
    for key, hits in ((A, 4), (B, 16)):
        samples = [
            {"task": "sums", "filter": "none", "doc_hash": str(i), "exact_match": float(i < hits)} for i in range(24)
        ]
        value = hits / 24
        builder.scores(key, "sums", "sums", {"exact_match": (value, 0.1)}, samples=samples)
        builder.scores(key, "text", "text", {"bits_per_byte": (2.0 - value, 0.5)}, limit=4 if key is A else None)
        builder.scores(key, "far", "far", {"acc": (value, 0.3)}, limit=24, n_available=96)
    builder.scores(B, "more", "more", {"acc": (0.5, 0.1)})
    return builder


def test_checkpoints_are_compared_score_by_score(two):
    differences, left_out = compare(*(scores_of(str(key), two.lake) for key in (A, B)))
    by_task = {d.task: d for d in differences}
    assert by_task["sums"].paired
    assert by_task["sums"].difference == pytest.approx(0.5)
    assert by_task["sums"].stderr == pytest.approx(np.std([0] * 12 + [1] * 12, ddof=1) / math.sqrt(24))
    assert by_task["sums"].verdict == "better"
    assert (by_task["far"].paired, by_task["far"].verdict) == (False, "unclear")
    assert by_task["far"].high == pytest.approx(0.5 + 1.96 * math.hypot(0.3, 0.3), abs=1e-3)
    assert left_out == ["text text bits_per_byte: limit differs: 4 against None", "more more acc: only scored for B"]


def test_the_command_prints_and_returns_them(two, tmp_path, monkeypatch):
    (tmp_path / "assets").mkdir()
    (tmp_path / "pamp.yaml").write_text("")
    folders = [str(two.lake.scores_dir(key, "").absolute()) for key in (A, B)]
    result = CliRunner().invoke(pamp, ["compare", *folders, "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout.splitlines()[-1])
    assert [d["task"] for d in data["differences"]] == ["far", "sums"]
    text = CliRunner().invoke(pamp, ["compare", *folders, "--confidence", "0.9"]).stdout
    assert "90% interval" in text
    assert "better" in text
    assert "unclear (not paired)" in text
    assert "24 of 96" in text, "a limit stands beside the scores that it cut"


def test_nothing_to_compare_is_said(builder, tmp_path):
    with pytest.raises(InputError, match="no scores there; `pamp evaluate"):
        scores_of(str(A), builder.lake)
    with pytest.raises(InputError, match="a checkpoint key needs a project"):
        scores_of(str(A), None)
