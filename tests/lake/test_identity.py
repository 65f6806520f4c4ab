"""Identities, hashes and keys."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import read_manifest
from pamp_pipelines.lake.hashing import sha256_file, sha256_json
from pamp_pipelines.lake.manifest import FileEntry, Manifest, artifact_id, content_hash
from pamp_pipelines.lake.publish import publish
from pamp_pipelines.lake.store import CheckpointKey, Lake

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_the_order_of_keys_does_not_matter(value):
    assert sha256_json(value) == sha256_json(dict(reversed(value.items())))


def test_identity_depends_on_each_of_its_parts():
    base = ("kind", 1, ["a", "b"], {"x": 1.0})
    others = [
        ("other", 1, ["a", "b"], {"x": 1.0}),
        ("kind", 2, ["a", "b"], {"x": 1.0}),
        ("kind", 1, ["b", "a"], {"x": 1.0}),
        ("kind", 1, ["ab"], {"x": 1.0}),
        ("kind", 1, ["a", "b"], {"x": 1.5}),
        ("kind", 1, ["a", "b"], {"y": 1.0}),
    ]
    assert len({artifact_id(*parts) for parts in [base, *others]}) == 7
    assert artifact_id(*base) == artifact_id(*base)


def test_a_value_that_is_no_number_has_no_identity():
    with pytest.raises(ValueError, match="JSON"):
        artifact_id("kind", 1, [], {"lr": float("nan")})


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), unique_by=lambda t: t[0], max_size=5))
def test_content_does_not_depend_on_the_order_of_files(pairs):
    files = [FileEntry(path=path, bytes=1, sha256=digest) for path, digest in pairs]
    assert content_hash(files) == content_hash(files[::-1])
    if files:
        assert content_hash(files) != content_hash(files[1:])


def test_a_files_hash_is_that_of_its_bytes(tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(data)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()


@given(
    model=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True),
    config=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True),
    version=st.integers(1, 10**6),
    step=st.integers(0, 10**9),
)
def test_checkpoint_keys_round_trip(model, config, version, step):
    key = CheckpointKey(model, config, version, step)
    assert CheckpointKey.parse(str(key)) == key


@given(st.lists(st.tuples(st.integers(1, 9999), st.integers(0, 9_999_999)), min_size=2, max_size=5))
def test_checkpoint_keys_sort_as_text_like_numbers(pairs):
    keys = [CheckpointKey("m", "c", version, step) for version, step in pairs]
    assert [str(key) for key in sorted(keys)] == sorted(map(str, keys))


@pytest.mark.parametrize(
    "key", ["", "m/c/v0001", "m/c/1/0000001", "m/c/v0001/1", "m|c/v0001/0000001", "a/b/c/v0001/0000001"]
)
def test_other_keys_are_refused_with_the_form(key):
    with pytest.raises(InputError, match="model/training_config/v0001/0000500"):
        CheckpointKey.parse(key)


def test_a_manifest_with_unknown_fields_is_refused(tmp_path):
    manifest = Manifest(kind="k", id="i", content="c", created="now")
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    assert read_manifest(tmp_path / "manifest.json") == manifest
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json()[:-1] + ', "more": 1}')
    with pytest.raises(InputError, match="more"):
        read_manifest(tmp_path / "manifest.json")
    with pytest.raises(ValidationError):
        Manifest.model_validate({**manifest.model_dump(), "schema_version": 2})


def test_digits_that_are_no_numbers_are_foreign(tmp_path):
    """`²` is a digit to str.isdigit, not to int."""
    lake = Lake(tmp_path)
    for name in ("v0001/kept/0000005", "v0001/kept/²", "v1²/kept/0000005"):
        record = lake.versions_dir("m", "c") / f"{name}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()
    assert lake.versions("m", "c") == [1]
    assert list(lake.kept_checkpoints()) == [CheckpointKey("m", "c", 1, 5)]
    for key in ("m/c/v٠٠٠١/0000005", "m/c/v0001/" + "9" * 5000):
        with pytest.raises(InputError, match="is no checkpoint key"):
            CheckpointKey.parse(key)


def test_the_lake_lists_finished_artifacts_and_kept_checkpoints(tmp_path):
    lake = Lake(tmp_path)
    for corpus in ("b", "a"):
        with publish(lake.corpus_dir(corpus, "0123456789abcdef"), kind="raw_corpus", id="0123456789abcdef") as draft:
            (draft.dir / "statistics.json").write_text("{}")
        assert draft.artifact.path.name == "0123456789ab"
    unfinished = lake.root / "corpora/a/.x.partial"
    unfinished.mkdir()
    (unfinished / "manifest.json").write_text(draft.artifact.manifest.model_dump_json())
    (lake.root / "corpora/b/broken").mkdir()
    (lake.root / "corpora/b/broken/manifest.json").write_text("{")
    assert [a.path.parent.name for a in lake.artifacts("raw_corpus")] == ["a", "b"]
    keys = [CheckpointKey("m", "c", version, step) for version, step in [(2, 5), (1, 10), (1, 0)]]
    for key in keys:
        lake.kept_record(key).parent.mkdir(parents=True, exist_ok=True)
        lake.kept_record(key).write_text("{}")
    assert list(lake.kept_checkpoints()) == sorted(keys)
    assert lake.versions("m", "c") == [1, 2]
    assert lake.versions("m", "absent") == []
    assert lake.export_dir(keys[0]) == tmp_path / "exports/m/c/v0002/0000005"
