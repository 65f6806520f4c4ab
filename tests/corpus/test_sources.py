from pathlib import Path

import fsspec
import pytest

from pamp_pipelines.corpus.sources import expand, open_source, stat_source
from pamp_pipelines.errors import InputError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl", "deep/deeper/d.jsonl", "e.txt", ".half.jsonl", "[x].jsonl"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    return tmp_path


def names(root: Path, *sources: str) -> list[str]:
    return [location.name for location in expand(sources, root)]


def test_globs_are_sorted_and_hidden_files_left_out(tree: Path) -> None:
    assert names(tree, "*.jsonl") == ["[x].jsonl", "a.jsonl", "b.jsonl"]
    assert names(tree, "**/*.jsonl") == ["[x].jsonl", "a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/deeper/d.jsonl"]


def test_sources_keep_their_order_and_files_come_once(tree: Path) -> None:
    (tree / "link.jsonl").symlink_to(tree / "a.jsonl")
    assert names(tree, "e.txt", "b.jsonl", "[ab].jsonl", "link.jsonl", str(tree / "b.jsonl")) == [
        "e.txt",
        "b.jsonl",
        "a.jsonl",
    ]


def test_a_folder_stands_for_the_files_below_it(tree: Path) -> None:
    assert names(tree, "deep") == ["deep/c.jsonl", "deep/deeper/d.jsonl"]


def test_a_folder_that_a_glob_matches_does_so_too(tree: Path) -> None:
    assert names(tree, "de*") == ["deep/c.jsonl", "deep/deeper/d.jsonl"]
    assert names(tree, "*") == ["[x].jsonl", "a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/deeper/d.jsonl", "e.txt"]


def test_a_name_with_glob_characters_means_itself(tree: Path) -> None:
    assert names(tree, "[x].jsonl") == ["[x].jsonl"]


def test_an_explicit_hidden_file_is_read(tree: Path) -> None:
    assert names(tree, ".half.jsonl") == [".half.jsonl"]


def test_loops_of_links_end(tree: Path) -> None:
    for name in ("one", "two"):
        (tree / "deep" / name).symlink_to(tree, target_is_directory=True)
    assert names(tree, "deep") == ["deep/c.jsonl", "deep/deeper/d.jsonl"]
    for pattern in ("deep/**/*.jsonl", "deep/*", "deep/**/*"):
        assert names(tree, pattern) == ["deep/c.jsonl", "deep/deeper/d.jsonl"]


def test_files_outside_the_root_have_absolute_names(tree: Path) -> None:
    assert names(tree / "deep", "../a.jsonl", f"file://{tree}/b.jsonl") == [f"{tree}/a.jsonl", f"{tree}/b.jsonl"]


def test_all_absent_sources_are_reported_at_once(tree: Path) -> None:
    (tree / "nothing").mkdir()
    (tree / "dangling.jsonl").symlink_to(tree / "gone")
    with pytest.raises(InputError) as caught:
        names(tree, "a.jsonl", "absent.jsonl", "*.parquet", "nothing", "dangling.jsonl")
    for source in ("absent.jsonl", "*.parquet", "nothing", "dangling.jsonl"):
        assert f"'{source}'" in str(caught.value)
    assert "'a.jsonl'" not in str(caught.value)


def test_fsspec_urls(tree: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("2.jsonl", "1.jsonl", ".3.jsonl"):
        memory.pipe(f"/corpus/{name}", name.encode())
    locations = expand(["memory://corpus/*.jsonl", "memory://corpus"], tree)
    assert [location.url for location in locations] == ["memory:///corpus/1.jsonl", "memory:///corpus/2.jsonl"]
    with open_source(locations[0].url) as stream:
        assert stream.read() == b"1.jsonl"
    size, token = stat_source(locations[0].url)
    memory.pipe("/corpus/1.jsonl", b"longer than before")
    assert size == 7
    assert stat_source(locations[0].url)[1] != token


def test_an_unknown_or_uninstalled_protocol_is_an_input_error(tree: Path) -> None:
    with pytest.raises(InputError, match="nosuch"):
        expand(["nosuch://bucket/x.jsonl"], tree)
