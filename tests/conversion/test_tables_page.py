"""The generated page of the tables."""

from pamp_pipelines.conversion.architectures import ARCHITECTURES
from pamp_pipelines.conversion.tables_page import PAGE, page


def test_the_committed_page_equals_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m pamp_pipelines.conversion.tables_page"


def test_every_entry_has_a_row() -> None:
    text = page()
    for architecture in ARCHITECTURES:
        section = text.split(f"\n## {architecture.name}\n")[1].split("\n## ")[0]
        assert section.count("\n| `") == len(architecture.entries)
        assert all(source.name.split("}.")[-1] in section for entry in architecture.entries for source in entry.sources)
