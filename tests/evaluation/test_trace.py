import hashlib
import shutil
from dataclasses import replace

import pytest

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.evaluation.trace import describe, file_lines, trace
from pamp_pipelines.lake.store import CheckpointKey

KEY = CheckpointKey("tiny", "poems-fast", 1, 50)
CHAIN = ["eval_scores", "hf_export", "checkpoint", "tokenized_shards", "megatron_checkpoint", "raw_corpus"]


@pytest.fixture
def scored(builder):
    builder.scores(KEY, "sums", "arithmetic_boxed", {"exact_match": (0.5, 0.1)})
    return builder


def test_a_score_leads_to_the_corpus(scored):
    ancestors = trace(scored.lake.scores_dir(KEY, "sums"), scored.lake)
    assert [a.ref.kind for a in ancestors] == CHAIN
    assert [a.depth for a in ancestors] == [0, 1, 2, 3, 3, 4]
    assert all(a.manifest is not None and not a.changed for a in ancestors)


def test_id_checkpoint_key_and_manifest_file_are_starts(scored):
    folder = scored.lake.scores_dir(KEY, "sums")
    whole = trace(folder, scored.lake)
    assert trace(whole[0].ref.id[:10], scored.lake) == whole
    assert trace(folder / "manifest.json", scored.lake) == whole
    assert [a.ref.kind for a in trace(str(KEY), scored.lake)] == CHAIN[2:]


def test_a_moved_lake_explains_itself(scored, tmp_path):
    from pamp_pipelines.lake.store import Lake

    shutil.copytree(scored.lake.root, tmp_path / "copy")
    shutil.rmtree(scored.lake.root)
    lake = Lake(tmp_path / "copy")
    assert [a.ref.kind for a in trace(lake.scores_dir(KEY, "sums"), lake)] == CHAIN


def test_what_is_gone_or_changed_is_said(scored):
    ancestors = trace(scored.lake.scores_dir(KEY, "sums"), scored.lake)
    by_kind = {a.ref.kind: a for a in ancestors}
    shutil.rmtree(by_kind["raw_corpus"].path.parent)
    manifest = by_kind["hf_export"].path
    manifest.write_text(manifest.read_text().replace(by_kind["hf_export"].ref.content, "0" * 64))
    again = {a.ref.kind: a for a in trace(scored.lake.scores_dir(KEY, "sums"), scored.lake)}
    assert again["raw_corpus"].path is None
    assert again["hf_export"].changed
    lines = list(describe(again.values(), scored.lake.root))
    assert lines[1].endswith("CHANGED since")
    assert lines[-1].endswith("not in this lake")
    assert lines[0].startswith("eval_scores  id ")
    assert "scores/tiny/poems-fast/v0001/0000050/sums" in lines[0]


def test_unknown_and_ambiguous_ids_are_refused(scored):
    with pytest.raises(InputError, match="no folder, checkpoint key or id"):
        trace("feed", scored.lake)
    with pytest.raises(InputError, match="no folder, checkpoint key or id"):
        trace("", scored.lake)


def test_files_lead_to_the_bytes_and_are_verified(scored, tmp_path):
    (tmp_path / "poems").mkdir()
    (tmp_path / "poems/a.jsonl").write_text('{"text": "a rose"}\n')
    ancestors = {a.ref.kind: a for a in trace(scored.lake.scores_dir(KEY, "sums"), scored.lake)}
    corpus = ancestors["raw_corpus"]
    declared = {"poems": {"sources": ["poems/*.jsonl"]}}
    corpus = replace(corpus, manifest=corpus.manifest.model_copy(update={"declaration": declared}))
    lines = list(file_lines(corpus, tmp_path, "hash"))
    assert lines[0].endswith("  payload.txt")
    source = hashlib.sha256(b'{"text": "a rose"}\n').hexdigest()
    assert lines[1].split() == ["19", source, "poems/a.jsonl", "(source)"]
    assert [line.split()[-1] for line in file_lines(ancestors["eval_scores"], tmp_path)][-1] == "scores.parquet"
    payload = corpus.path.parent / "payload.txt"
    payload.write_text(payload.read_text().replace("raw", "RAW"))
    assert list(file_lines(corpus, tmp_path)), "without verifying, the manifest is believed"
    with pytest.raises(VerificationFailed, match=r"payload\.txt: SHA-256"):
        list(file_lines(corpus, tmp_path, "hash"))
