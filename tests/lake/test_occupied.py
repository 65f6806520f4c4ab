"""Nothing but an older artifact of the same kind gives way to a new one."""

from pathlib import Path

import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.occupied import require_outside_artifacts, require_own_folder, require_replaceable
from pamp_pipelines.lake.publish import publish


def build(final: Path, kind: str = "raw_corpus", text: str = "hello") -> None:
    with publish(final, kind=kind, id=text) as draft:
        (draft.dir / "file.txt").write_text(text)


def test_an_older_artifact_of_the_kind_gives_way(tmp_path: Path) -> None:
    build(tmp_path / "a")
    build(tmp_path / "a", text="again")
    assert (tmp_path / "a/file.txt").read_text() == "again"


def test_an_artifact_of_another_kind_stays(tmp_path: Path) -> None:
    build(tmp_path / "a", kind="tokenized_shards")
    with pytest.raises(InputError, match="holds a tokenized_shards, which a raw_corpus must not replace"):
        build(tmp_path / "a", text="again")
    assert read_artifact(tmp_path / "a", verify="hash").kind == "tokenized_shards"


def test_a_manifest_of_something_else_protects_nothing_but_its_folder(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/manifest.json").write_text('{"name": "my app"}')
    with pytest.raises(InputError, match=r"app: its manifest\.json is not one of an artifact"):
        build(tmp_path / "app")
    assert (tmp_path / "app/manifest.json").is_file()


def test_files_that_somebody_put_into_an_artifact_stay(tmp_path: Path) -> None:
    build(tmp_path / "a")
    (tmp_path / "a/notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"does not name .*notes\.txt"):
        build(tmp_path / "a", text="again")
    assert (tmp_path / "a/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("output", ["source", "link", "."])
def test_a_source_is_never_replaced_by_what_is_made_from_it(tmp_path: Path, output: str) -> None:
    build(tmp_path / "source")
    (tmp_path / "link").symlink_to("source")
    with pytest.raises(InputError, match="would replace its own source"):
        require_replaceable(tmp_path / output, "raw_corpus", [tmp_path / "source"])
    require_replaceable(tmp_path / "source/inside", "raw_corpus", [tmp_path / "source"])


def test_a_folder_that_a_user_names_lies_in_nothing_finished(tmp_path: Path) -> None:
    build(tmp_path / "made")
    (tmp_path / "link").symlink_to("made")
    (tmp_path / "model").mkdir()
    (tmp_path / "manifest.json").write_text('{"name": "somebody\'s app"}')
    for inside in ("made/scores", "made/far/down", "link/scores"):
        with pytest.raises(InputError, match=r"lies inside .*made, a finished raw_corpus.*choose another output"):
            require_own_folder(tmp_path / inside, "eval_scores")
    with pytest.raises(InputError, match="lies inside its own source"):
        require_own_folder(tmp_path / "model/scores", "eval_scores", [tmp_path / "model"])
    with pytest.raises(InputError, match="holds a raw_corpus"):
        require_own_folder(tmp_path / "made", "eval_scores")
    require_own_folder(tmp_path / "made", "raw_corpus")
    require_own_folder(tmp_path / "scores/new", "eval_scores", [tmp_path / "model"])
    require_outside_artifacts(tmp_path / "made")
