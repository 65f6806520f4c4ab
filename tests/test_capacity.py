"""docs/capacity.md is what the script computes, of figures that docs/measurements.md still holds."""

from benchmarks import capacity


def test_every_measured_figure_is_one_of_measurements() -> None:
    text = capacity.MEASUREMENTS.read_text()
    missing = [figure.words for figure in capacity.MEASURED.values() if figure.words not in text]
    assert missing == []


def test_the_page_is_computed() -> None:
    assert capacity.PAGE.read_text() == capacity.page(), "run `python benchmarks/capacity.py --write`"
