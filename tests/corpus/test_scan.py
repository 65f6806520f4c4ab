import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.corpus import scan, scripts
from pamp_pipelines.corpus.job import CorpusJob, corpus_job
from pamp_pipelines.corpus.scan import scan_corpus
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.corpus import Corpus
from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.remembered import remember
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.jsonl").write_text('{"text": "one"}\n{"text": ""}\n{"text": "three"}\n')
    (tmp_path / "text/b.jsonl").write_text('{"text": "' + "ä" * 3000 + '"}\n')
    return tmp_path


def job(root: Path, **declared: Any) -> CorpusJob:
    corpus = Corpus.model_validate({"licence": "CC0-1.0", "sources": ["text/*"], "format": "jsonl", **declared})
    return corpus_job(Catalog(Project(root), corpora={"tiny": corpus}), Lake(root / "lake"), "tiny")


def test_the_manifest_describes_every_file(root: Path) -> None:
    events: list[Event] = []
    artifact = scan_corpus(job(root), events.append)
    assert artifact == read_artifact(artifact.path, verify="hash")
    assert artifact.kind == "raw_corpus"
    assert artifact.manifest.stats == {
        "files": 2,
        "bytes": sum(f.stat().st_size for f in (root / "text").iterdir()),
        "documents": 3,
        "characters": 3008,
        "dropped": {"empty": 1},
        "scripts": {"Latin": 1.0},
    }
    assert artifact.manifest.declaration["tiny"]["licence"] == "CC0-1.0"
    assert [e.kind for e in events] == ["started", "finished"]
    statistics = json.loads((artifact.path / "statistics.json").read_text())
    assert [f["path"] for f in statistics["per_file"]] == ["text/a.jsonl", "text/b.jsonl"]
    assert statistics["per_file"][0]["documents"] == 2
    assert statistics["per_file"][0]["dropped"] == {"empty": 1}
    assert statistics["documents_by_length"] == [
        {"characters_from": 2, "characters_below": 4, "documents": 1},
        {"characters_from": 4, "characters_below": 8, "documents": 1},
        {"characters_from": 2048, "characters_below": 4096, "documents": 1},
    ]
    sample = [json.loads(line) for line in (artifact.path / "sample.jsonl").read_text().splitlines()]
    assert [(s["file"], s["index"], s["characters"], len(s["text"])) for s in sample] == [
        ("text/a.jsonl", 0, 3, 3),
        ("text/a.jsonl", 2, 5, 5),
        ("text/b.jsonl", 0, 3000, 2000),
    ]
    picture = (artifact.path / "lengths.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) <= 100_000


def test_a_finished_artifact_is_found(root: Path) -> None:
    first = scan_corpus(job(root))
    events: list[Event] = []
    assert scan_corpus(job(root), events.append) == first
    assert events == []


def test_content_is_the_same_in_another_place_and_at_another_time(root: Path, tmp_path_factory: Any) -> None:
    other = tmp_path_factory.mktemp("other")
    (root / "text").rename(other / "moved")
    (other / "moved").rename(other / "text")
    first = scan_corpus(job(other))
    os.utime(other / "text/a.jsonl", (1, 1))
    (other / "lake").rename(other / "old")
    second = scan_corpus(job(other))
    assert (first.id, first.content) == (second.id, second.content)


def test_identity_follows_content_and_reading_rules(root: Path) -> None:
    base = job(root).id
    same = job(root, description="other", owners=["team:x"], licence="MIT", held_out={"fraction": 0.5})
    assert same.id == base
    assert job(root, on_error="drop").id != base
    assert job(root, text_field="body").id != base
    (root / "text/a.jsonl").write_text('{"text": "eno"}\n{"text": ""}\n{"text": "three"}\n')
    assert job(root).id != base


def test_bad_rows_stop_or_are_counted(root: Path) -> None:
    (root / "text/a.jsonl").write_text('{"text": "one"}\n{"no": 1}\n{"text": 2}\nnonsense\n')
    with pytest.raises(InputError, match=r"text/a\.jsonl: row 2"):
        scan_corpus(job(root))
    artifact = scan_corpus(job(root, on_error="drop"))
    assert artifact.manifest.stats["dropped"] == {"malformed": 1, "missing_field": 1, "wrong_type": 1}
    assert artifact.manifest.stats["documents"] == 2
    (check,) = artifact.manifest.checks
    assert (check.name, check.passed, check.severity) == ("nothing_dropped", False, "WARN")


def test_shares_of_scripts_and_languages(root: Path) -> None:
    rows = [
        {"text": "Latin letters 123 …", "meta": {"lang": "en"}},
        {"text": "中文文本，ハングル한글", "meta": {"lang": "zh"}},
        {"text": "Кириллица ﬁ ｆ", "meta": {}},
        {"text": "12345 67890!", "meta": {"lang": 3}},
    ]
    (root / "text/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "text/b.jsonl").write_text('{"text": "x"}\n')
    artifact = scan_corpus(job(root, language_field="meta.lang"))
    letters = {"Latin": 12 + 2 + 1, "Han": 4, "Katakana": 4, "Hangul": 2, "Cyrillic": 9}
    assert artifact.manifest.stats["scripts"] == {
        name: round(count / 34, 4) for name, count in sorted(letters.items(), key=lambda item: -item[1])
    }
    assert artifact.manifest.stats["languages"] == {"(none)": 3, "en": 1, "zh": 1}
    assert json.loads((artifact.path / "statistics.json").read_text())["languages"]["en"] == 1
    assert job(root).id != artifact.id


def test_the_sample_of_scripts_does_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "_ALL", 5)
    texts = [("a" if i % 3 else "я") * (1 + i % 5) for i in range(200)]
    looked_at = [*range(5), *(i for i in range(5, 200) if i % 16 == 0)]
    expected = sum(len(texts[i]) for i in looked_at if i % 3) / sum(len(texts[i]) for i in looked_at)
    for size in (1, 3, 7, 64, 200):
        counter = scripts.ScriptCounter()
        for start in range(0, 200, size):
            counter.add(texts[start : start + size])
        assert scripts.shares(counter.letters)["Latin"] == round(expected, 4)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read, in order."""
    names: list[str] = []
    batches = scan.read_batches
    monkeypatch.setattr(scan, "read_batches", lambda file, *more: names.append(file.name) or batches(file, *more))
    return names


def test_untouched_files_are_not_read_again(root: Path, read: list[str]) -> None:
    rows = [{"text": "one two", "l": "en"}, {"text": "один", "l": "ru"}, {"text": ""}]
    for name in "cd":
        (root / f"text/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    declared = {"on_error": "drop", "language_field": "l"}
    scan_corpus(job(root, **declared))
    # c has the content of d: it is read once
    assert read == ["text/a.jsonl", "text/b.jsonl", "text/c.jsonl"]
    read.clear()
    (root / "text/b.jsonl").write_text('{"text": "new"}\n')
    (root / "text/d.jsonl").unlink()
    (root / "text/e.jsonl").write_text('{"text": "more"}\n')
    artifact = scan_corpus(job(root, **declared))
    assert read == ["text/b.jsonl", "text/e.jsonl"]
    shutil.rmtree(root / "lake")
    assert scan_corpus(job(root, **declared)).content == artifact.content
    read.clear()
    scan_corpus(job(root, on_error="drop", text_field="l"))
    assert len(read) == 4


def test_a_scan_that_ended_early_goes_on(root: Path, read: list[str]) -> None:
    (root / "text/c.jsonl").write_text('{"text": "c"}\n')
    scan_corpus(job(root))
    (root / "text/b.jsonl").write_text("nonsense\n")
    with pytest.raises(InputError, match=r"text/b\.jsonl: row 1"):
        scan_corpus(job(root))
    (root / "text/b.jsonl").write_text('{"text": "corrected"}\n')
    read.clear()
    assert scan_corpus(job(root)).manifest.stats["documents"] == 4
    assert read == ["text/b.jsonl"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"key": "x", "files": {}}'])
def test_damaged_counts_cost_time_only(root: Path, read: list[str], content: bytes) -> None:
    first = scan_corpus(job(root))
    (first.path.parent / ".counts.json").write_bytes(content)
    shutil.rmtree(first.path)
    read.clear()
    assert scan_corpus(job(root)).content == first.content
    assert len(read) == 2


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"documents": -7},
        {"documents": 9},
        {"characters": -1},
        {"dropped": {"empty": -1}},
        {"lengths": {"3": -1}},
        {"languages": {"en": 5}},
    ],
)
def test_counts_that_were_changed_are_not_published(
    root: Path, read: list[str], change: dict[str, Any], sealed: bool
) -> None:
    first = scan_corpus(job(root))
    file = first.path.parent / ".counts.json"
    kept = json.loads(file.read_text())
    for counts in kept["content"]["files"].values():
        counts.update(change)
    if sealed:  # as a faulty version would have written it
        remember(file, kept["content"])
    else:
        file.write_text(json.dumps(kept))
    shutil.rmtree(first.path)
    read.clear()
    assert scan_corpus(job(root)).content == first.content
    assert len(read) == 2


def test_no_document_is_an_error_that_names_the_corpus(root: Path) -> None:
    (root / "text/b.jsonl").unlink()
    (root / "text/a.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(InputError, match=r"corpus 'tiny'.*'empty': 1.*text_field"):
        scan_corpus(job(root))
    assert not job(root).output.exists()


def test_a_file_that_changed_after_the_job_was_made(root: Path) -> None:
    made = job(root)
    with (root / "text/b.jsonl").open("a") as stream:
        stream.write('{"text": "more"}\n')
    with pytest.raises(InputError, match=r"text/b\.jsonl.*raw_corpus"):
        scan_corpus(made)
    assert not made.output.exists()


def test_absent_sources_name_the_declaration(root: Path) -> None:
    with pytest.raises(InputError, match=r"assets/corpora/tiny\.yaml: source 'nowhere/\*'"):
        job(root, sources=["text/*", "nowhere/*"])


def test_a_full_disk_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scan, "write_json", full)
    made = job(root)
    with pytest.raises(PampError, match="no space left"):
        scan_corpus(made)
    assert [p.name for p in made.output.parent.iterdir() if "partial" in p.name or p == made.output] == []
