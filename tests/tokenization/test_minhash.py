"""Similar texts: the clusters of datatrove's own pipeline, whatever the pieces."""

import json
import random
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.utils.hashing import HashConfig

from pamp_pipelines.declarations.corpus import Corpus, Filter, MinHash
from pamp_pipelines.errors import InputError
from pamp_pipelines.tokenization import build, datatrove_blocks, duplicates, minhash
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.duplicates import DIGEST, first_of_similar
from pamp_pipelines.tokenization.engines import open_tokenizer
from pamp_pipelines.tokenization.indexed import IndexedReader
from pamp_pipelines.tokenization.job import TokenizeJob
from pamp_pipelines.tokenization.minhash import MinHasher, _between_blanks
from pamp_pipelines.tokenization.pieces import PieceMaker, Staging

MakeJob = Callable[..., TokenizeJob]

DECLARED = MinHash(n_grams=3, num_buckets=10, hashes_per_bucket=4, seed=7)


def altered(texts: Sequence[str], copies: int, share: float) -> list[str]:
    """Each text and copies in which a share of the words is another, in any order."""
    choose = random.Random(0)
    found = []
    for text in texts:
        for _ in range(copies):
            words = text.split()
            for place in choose.sample(range(len(words)), int(share * len(words))):
                words[place] = f"other{choose.randrange(10**6)}"
            found.append(" ".join(words))
    choose.shuffle(found)
    return found


def clusters_of_datatrove(files: Sequence[Sequence[str]], folder: Path) -> list[set[int]]:
    """Numbers of the documents of each cluster of several."""
    sha1 = HashConfig(hash_fc="sha1")
    config = MinhashConfig(n_grams=3, num_buckets=10, hashes_per_bucket=4, seed=7, hash_config=sha1)
    for rank, texts in enumerate(files):
        step = MinhashDedupSignature(str(folder / "signatures"), config, _between_blanks())
        step.run([Document(text=text, id=str(i)) for i, text in enumerate(texts)], rank, len(files))
    for bucket in range(config.num_buckets):
        step = MinhashDedupBuckets(
            str(folder / "signatures"), str(folder / "pairs"), config=config, only_dedup_in_index=False
        )
        step.run(None, bucket, config.num_buckets)
    MinhashDedupCluster(str(folder / "pairs"), str(folder / "clusters"), config, save_cluster_id=True).run()
    found: dict[int, set[int]] = {}
    starts = np.cumsum([0, *map(len, files)]).tolist()
    for path in (folder / "clusters").glob("*.clusters"):
        for document, cluster in struct.iter_unpack("<2I", path.read_bytes()):
            found.setdefault(cluster, set()).add(starts[int(path.stem)] + document)
    return list(found.values())


def share_a_band(one: bytes, other: bytes) -> bool:
    bands = range(0, len(one), DIGEST)
    return any(one[i : i + DIGEST] == other[i : i + DIGEST] for i in bands)


def test_clusters_are_those_of_datatroves_pipeline(plays: list[str], tmp_path: Path) -> None:
    # some copies are so far from each other that only a third one joins them
    texts = [*altered([play[:600] for play in plays[:40]], copies=4, share=0.12), "too short", "too short"]
    files = [texts[:60], texts[60:61], texts[61:]]
    hasher = MinHasher(DECLARED)
    paths = []
    for number, of_file in enumerate(files):
        paths.append(tmp_path / f"{number}.minhash")
        paths[-1].write_bytes(b"".join(map(hasher.fingerprint, of_file)))
    kept = np.concatenate(first_of_similar(paths, DECLARED.num_buckets))
    expected = clusters_of_datatrove(files, tmp_path)
    assert len(expected) > 10
    prints = [hasher.fingerprint(text) for text in texts]
    assert any(not share_a_band(prints[a], prints[b]) for c in expected for a in c for b in c)
    in_clusters = set().union(*expected)
    assert {i for i in range(len(texts)) if kept[i]} == {min(c) for c in expected} | (
        set(range(len(texts))) - in_clusters
    )
    for at_once in (1, 50):
        assert np.array_equal(np.concatenate(first_of_similar(paths, DECLARED.num_buckets, at_once)), kept)


def test_a_text_of_few_words_is_similar_to_none() -> None:
    hasher = MinHasher(DECLARED)
    assert hasher.fingerprint("two words") == bytes(10 * DIGEST)
    assert hasher.fingerprint("now three words") == hasher.fingerprint("Now,  THREE\nwords!")


def test_long_texts_are_hashed_in_parts(plays: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hasher = MinHasher(DECLARED)
    whole = hasher.fingerprint(plays[0])
    for permuted in (7 * 40, 1):
        monkeypatch.setattr(minhash, "_PERMUTED", permuted)
        assert MinHasher(DECLARED).fingerprint(plays[0]) == whole


@pytest.mark.parametrize(("buckets", "hashes"), [(14, 8), (20, 450), (1000, 10)])
def test_memory_does_not_grow_with_the_number_of_hashes(plays: list[str], buckets: int, hashes: int) -> None:
    hasher = MinHasher(MinHash(num_buckets=buckets, hashes_per_bucket=hashes))
    text = " ".join(plays)[:25_000]
    tracemalloc.start()
    hasher.fingerprint(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_memory_of_clusters_does_not_grow_with_the_number_of_bands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bands, documents = 200, 5000
    hashes = np.random.default_rng(0).integers(0, 256, (documents, bands * DIGEST), np.uint8)
    hashes[1234, 5 * DIGEST : 6 * DIGEST] = hashes[7, 5 * DIGEST : 6 * DIGEST]
    hashes.tofile(tmp_path / "0.minhash")
    monkeypatch.setattr(duplicates, "_READ_BYTES", 1 << 20)
    tracemalloc.start()
    (kept,) = first_of_similar([tmp_path / "0.minhash"], bands)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.flatnonzero(~kept).tolist() == [1234]
    assert peak < 6e6 < hashes.nbytes / 2


def test_sizes_that_no_worker_can_compute_are_refused() -> None:
    MinHash(num_buckets=20, hashes_per_bucket=450)
    with pytest.raises(ValueError, match=r"1000 x 1000 = 1,000,000 hashes.*at most 10,000"):
        MinHash(num_buckets=1000, hashes_per_bucket=1000)


def test_in_a_build_whatever_the_pieces_and_whatever_was_killed(
    make_job: MakeJob, plays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = altered([play[:400] for play in plays[:30]], copies=3, share=0.05)
    texts = [*copies, *copies[:5], "short", "short"]
    job = make_job(texts, files=4, fraction=0.2, filters=[Filter(minhash=DECLARED)])
    whole = tokenize(job.model_copy(update={"workers": 1}))
    dropped = whole.manifest.stats["dropped"]
    assert dropped["duplicate"] == 6
    assert 55 <= dropped["near_duplicate"] <= 60
    assert not whole.manifest.failed_checks

    small = job.model_copy(update={"task_bytes": 3000, "output": job.output.with_name("small")})
    make, made = PieceMaker.make, []

    def stopped(self: PieceMaker, task: int, on_batch: object) -> object:
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(task)
        return make(self, task, on_batch)  # type: ignore[arg-type]

    monkeypatch.setattr(PieceMaker, "make", stopped)
    with pytest.raises(KeyboardInterrupt):
        tokenize(small.model_copy(update={"workers": 1}))
    monkeypatch.setattr(PieceMaker, "make", make)
    resumed = tokenize(small.model_copy(update={"workers": 2}))
    assert resumed.content == whole.content
    assert resumed.manifest.stats["dropped"] == dropped


def test_held_out_texts_have_no_similar_one_in_training(make_job: MakeJob, plays: list[str]) -> None:
    texts = altered([play[:400] for play in plays[:30]], copies=3, share=0.05)
    artifact = tokenize(make_job(texts, fraction=0.3, filters=[Filter(minhash=DECLARED)], workers=1))
    held_out = [json.loads(line)["text"] for line in (artifact.path / "heldout.jsonl").read_text().splitlines()]
    hasher = MinHasher(DECLARED)

    engine, reader = open_tokenizer(artifact.path), IndexedReader(artifact.path / "train")
    train = [hasher.fingerprint(engine.decode(reader[i][:-1].tolist())) for i in range(len(reader))]
    assert len(held_out) >= 5
    assert not any(share_a_band(hasher.fingerprint(text), other) for text in held_out for other in train)


def test_a_damaged_piece_is_made_again(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job([f"a document with number {i}" for i in range(40)], filters=[Filter(minhash=MinHash())])
    job = job.model_copy(update={"task_bytes": 400, "workers": 1})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build, "_join", killed)
        with pytest.raises(KeyboardInterrupt):
            tokenize(job)
    staging = Staging.of(job.output)
    assert staging.finished(0)
    for name in ("train.minhash", "train.hashes", "heldout.jsonl", "sample.jsonl"):
        file = staging.file(1, name)
        content = file.read_bytes()
        file.write_bytes(content + b"x")
        assert staging.finished(1) is None, name
        file.write_bytes(content)
    marker = staging.file(1, "json")
    content = marker.read_bytes()
    for change in ({"read": -7}, {"dropped": {"empty": 1}}, {"text_bytes": -1}, {"train": [3, 9]}):
        marker.write_text(json.dumps(json.loads(content) | change))
        assert staging.finished(1) is None, change
    marker.write_bytes(content)
    assert staging.finished(1)


@pytest.mark.parametrize("language", ["nope", "eng"])
def test_a_language_that_cannot_be_split_is_named(make_job: MakeJob, language: str) -> None:
    job = make_job(["a text of some six words"], filters=[Filter(minhash=MinHash(language=language))], workers=1)
    with pytest.raises(InputError, match=rf"minhash.language '{language}': (ValueError|ImportError)"):
        tokenize(job)


def test_parameters_and_the_version_are_part_of_the_identity(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def id(**changes: object) -> str:
        return make_job(["a"], filters=[Filter(minhash=MinHash.model_validate(changes))]).id

    assert len({id(), id(n_grams=4), id(num_buckets=3), id(hashes_per_bucket=2), id(seed=2), id(language="eng")}) == 6
    before = id()
    monkeypatch.setattr(datatrove_blocks, "version", lambda _: "0.0.0")
    assert id() != before


def test_it_is_the_last_step() -> None:
    with pytest.raises(ValueError, match="`minhash` must be the last step"):
        Corpus.model_validate(
            {"licence": "x", "sources": ["a"], "format": "jsonl", "filters": [{"minhash": {}}, {"min_characters": 1}]}
        )
