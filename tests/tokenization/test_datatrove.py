"""Blocks of datatrove as declared steps, counted by their own reasons."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pamp_pipelines.declarations.corpus import Filter
from pamp_pipelines.errors import InputError
from pamp_pipelines.tokenization import datatrove_blocks
from pamp_pipelines.tokenization.build import tokenize
from pamp_pipelines.tokenization.filters import Filters
from pamp_pipelines.tokenization.job import TokenizeJob, plain_tokenize_job


def block(name: str, metadata: dict[str, str] | None = None, **arguments: Any) -> Filter:
    return Filter.model_validate({"datatrove": {"block": name, "arguments": arguments, "metadata": metadata or {}}})


def applied(filters: list[Filter], texts: list[str]) -> tuple[list[str], Counter[str]]:
    dropped: Counter[str] = Counter()
    return Filters(filters).apply(texts, [], dropped)[0], dropped


def test_a_filter_drops_with_its_own_reason() -> None:
    paragraphs = "\n\n".join("a paragraph " * 20 for _ in range(3))
    kept, dropped = applied([block("C4ParagraphFilter")], [paragraphs, "one\n\ntwo", "x"])
    assert kept == [paragraphs]
    assert dropped == {"datatrove_< 3 paragraphs": 2}


def test_a_filter_without_reasons_goes_by_its_name() -> None:
    kept, dropped = applied([block("RegexFilter", regex_exp="(?i)lorem")], ["a", "Lorem", "b lorem"])
    assert (kept, dropped) == (["a"], {"datatrove_RegexFilter": 2})


def test_a_formatter_changes_the_text_and_later_steps_see_that() -> None:
    steps = [block("PIIFormatter"), Filter(drop_matching="email@example"), block("SymbolLinesFormatter")]
    kept, dropped = applied(steps, ["write to jane.doe@company.org", "no address", "a\n|\nb"])
    assert kept == ["no address", "a\nb"]
    assert dropped == {"matches_pattern": 1}


def test_in_a_build(make_job: Callable[..., TokenizeJob], tmp_path: Path, tokenizer: Path) -> None:
    texts = [f"{'lorem' if i % 3 == 0 else 'document'} {i}" for i in range(60)]
    filters = [block("RegexFilter", regex_exp="lorem")]
    artifact = tokenize(make_job(texts, files=3, filters=filters, workers=2).model_copy(update={"task_bytes": 100}))
    assert artifact.manifest.stats["dropped"] == {"datatrove_RegexFilter": 20}
    assert artifact.manifest.stats["documents_written"] == 40
    assert not artifact.manifest.failed_checks


def test_fields_become_metadata(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datatrove.pipeline import filters

    class ByUrl(filters.RegexFilter):
        def filter(self, doc: Any) -> Any:
            return (False, f"from_{doc.metadata['url']}") if "url" in doc.metadata else True

    monkeypatch.setattr(filters, "ByUrl", ByUrl, raising=False)
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "a", "meta": {"url": "x"}}\n{"text": "b"}\n')
    steps = [block("ByUrl", {"url": "meta.url"}, regex_exp="")]
    artifact = tokenize(plain_tokenize_job([str(source)], tokenizer, tmp_path / "out", filters=steps, workers=1))
    assert artifact.manifest.stats["dropped"] == {"datatrove_from_x": 1}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (block("Nope"), r"'Nope': no such block; there are C4BadWordsFilter"),
        (block("LambdaFilter"), "'LambdaFilter' cannot be used: it takes code"),
        (block("SamplerFilter"), "'SamplerFilter' cannot be used: its draws depend on the order"),
        (block("RegexFilter", nope=1), r"RegexFilter with \{'nope': 1\}: TypeError: .*nope"),
        (block("FTFYFormatter"), r"FTFYFormatter with \{\}: ImportError: Please install `ftfy`"),
        (block("RegexFilter", regex_exp="("), "RegexFilter with .*error"),
    ],
)
def test_blocks_that_cannot_be_used_are_named(step: Filter, message: str) -> None:
    with pytest.raises(InputError, match=rf"filters: datatrove\.block {message}"):
        Filters([step])


def test_a_worker_that_cannot_use_a_block_says_so(make_job: Callable[..., TokenizeJob]) -> None:
    job = make_job(["a", "b"], files=2, filters=[block("FTFYFormatter")], workers=2)
    with pytest.raises(InputError, match="Please install `ftfy`"):
        tokenize(job.model_copy(update={"task_bytes": 1}))


def test_the_version_is_part_of_the_identity(
    make_job: Callable[..., TokenizeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = block("PIIFormatter")
    before = make_job(["a"], filters=[step]).id
    monkeypatch.setattr(datatrove_blocks, "version", lambda _: "0.0.0")
    assert make_job(["a"], filters=[step]).id != before

    def absent(_: str) -> str:
        raise datatrove_blocks.PackageNotFoundError

    monkeypatch.setattr(datatrove_blocks, "version", absent)
    with pytest.raises(InputError, match=r"not installed; `uv pip install --python \S+ -e '\.\[datatrove\]'`"):
        make_job(["a"], filters=[step])
    make_job(["a"])


def test_nothing_of_it_is_imported_where_none_is_declared(make_job: Callable[..., TokenizeJob], tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(make_job(["a"], filters=[Filter(min_characters=1)], workers=1).model_dump_json())
    program = (
        "import sys; from pathlib import Path; from pamp_pipelines.tokenization.build import tokenize;"
        "from pamp_pipelines.tokenization.job import TokenizeJob;"
        "tokenize(TokenizeJob.model_validate_json(Path(sys.argv[1]).read_text()));"
        "import json; print(json.dumps([m for m in sys.modules if m.split('.')[0] in ('datatrove', 'loguru')]))"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == []
