from pathlib import Path

from pamp_pipelines.lake.publish import publish
from pamp_pipelines.training.resolve import weighted_shards


def test_a_corpus_of_several_pairs_keeps_its_weight(tmp_path: Path) -> None:
    pairs = [("train_00000", 600), ("train_00001", 300), ("train_00002", 100)]
    with publish(tmp_path / "shards", kind="tokenized_shards", id="0" * 64) as draft:
        entries = [{"name": name, "documents": 1, "tokens": tokens} for name, tokens in pairs]
        draft.stats["train"] = {"documents": 3, "tokens": 1000, "pairs": entries}
    shards = weighted_shards(draft.artifact, 0.3)
    assert [s.prefix for s in shards] == [tmp_path / "shards" / name for name, _ in pairs]
    assert [round(s.weight, 12) for s in shards] == [0.18, 0.09, 0.03]


def test_the_weight_of_a_single_pair_is_exact(tmp_path: Path) -> None:
    with publish(tmp_path / "shards", kind="tokenized_shards", id="0" * 64) as draft:
        pair = {"name": "train", "documents": 1, "tokens": 7}
        draft.stats["train"] = {"documents": 1, "tokens": 7, "pairs": [pair]}
    assert [s.weight for s in weighted_shards(draft.artifact, 0.3)] == [0.3]
