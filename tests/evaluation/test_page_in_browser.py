"""The report in headless Chromium: complete without scripts, sortable and filterable with them, no network."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from pamp_pipelines.evaluation.leaderboard import build_leaderboard
from pamp_pipelines.lake.store import CheckpointKey

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RUNS = (("tiny", "poems-fast", 1), ("大模型", "续写", 1))

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def page_file(shared_builder) -> Path:
    builder = shared_builder
    for model, config, version in RUNS:
        for step in (0, 50, 100):
            key = CheckpointKey(model, config, version, step)
            start = 900.0 if model == "tiny" else 60.0
            perplexity = start / (1 + step / 25)
            values = {
                "token_perplexity": (perplexity, perplexity / 30),
                "word_perplexity": (perplexity**1.3, perplexity / 9),
                "bits_per_byte": (perplexity**0.2, 0.01),
                "unigram_perplexity": (500.0, None),
            }
            builder.scores(key, "heldout", "heldout_perplexity", values, contamination=0.04)
            hits = 2 + step // 10 + (4 if model != "tiny" else 0)
            samples = [
                {"task": "sums", "filter": "none", "doc_hash": str(i), "exact_match": float(i < hits)}
                for i in range(24)
            ]
            accuracy = {"exact_match": (hits / 24, 0.09)}
            builder.scores(key, "sums", "sums", accuracy, samples=samples, limit=24, n_available=96)
        builder.metrics(
            CheckpointKey(model, config, version, 0),
            [
                {
                    "iteration": i,
                    "loss": 7.0 / i**0.3,
                    "validation_loss": 7.4 / i**0.3 if i % 10 == 0 else None,
                    "seconds_per_iteration": 0.25,
                }
                for i in range(1, 101)
            ],
        )
    return build_leaderboard(builder.lake).path / "index.html"


@pytest.fixture
def open_page(page_file):
    """A function that opens the report, and the requests and errors that the browser saw."""
    assert CHROMIUM, "these tests need Chromium"
    seen: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def load(scripts: bool, width: int = 1360):
            page = browser.new_context(java_script_enabled=scripts, viewport={"width": width, "height": 900}).new_page()
            page.on("request", lambda request: seen.append(request.url))
            page.on("pageerror", lambda error: seen.append(str(error)))
            page.on("console", lambda message: seen.append(message.text))
            page.goto(page_file.absolute().as_uri())
            return page

        yield load, seen
        browser.close()


def test_everything_is_readable_without_scripts(open_page, page_file):
    load, seen = open_page
    page = load(scripts=False)
    text = page.inner_text("main")
    for wanted in (
        "before and after training",
        "900.0 step 0",
        "180.0 step 100",
        "500.0",
        "Differences",
        "95 % interval",
    ):
        assert wanted in text, wanted
    for wanted in ("大模型", "24 of 96", "4% share a 13-gram", "paired", "tokens a second", "RIGHT", "WRONG"):
        assert wanted in text, wanted
    assert page.locator(".board tbody tr").count() == 6
    pictures = page.locator("img")
    assert pictures.count() == 2
    assert all(picture.bounding_box()["height"] > 100 for picture in pictures.all())
    assert [url for url in seen if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1360, "the page itself does not scroll sideways"
    if folder := os.environ.get("PAMP_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / "leaderboard.png", full_page=True)


@pytest.mark.parametrize("scripts", [True, False])
def test_a_telephone_shows_it_all(open_page, scripts):
    load, _ = open_page
    page = load(scripts=scripts, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the page itself does not scroll sideways"
    assert all(picture.bounding_box()["width"] > 700 for picture in page.locator("img").all()), "they scroll in place"
    names = page.locator(".board td.name")
    assert all(name.bounding_box()["width"] < 180 for name in names.all()), "scores are in sight beside the names"


def test_the_table_sorts_filters_and_compares(open_page):
    load, seen = open_page
    page = load(scripts=True)
    rows = page.locator(".board tbody tr")
    heading = page.locator(".board thead tr:last-child th", has_text="token perplexity")
    at = heading.evaluate("th => th.cellIndex")

    def column():
        return [float(row.locator("td").nth(at).get_attribute("data-value")) for row in rows.all()]

    before = column()
    heading.click()
    assert column() == sorted(before)
    heading.click()
    assert column() == sorted(before, reverse=True)
    page.get_by_label("Filter by model or config").fill("续写")
    assert [row.is_visible() for row in rows.all()].count(True) == 3
    page.get_by_label("Filter by model or config").fill("")
    page.get_by_label("checkpoint A").select_option(label="tiny poems-fast, step 0")
    page.get_by_label("checkpoint B").select_option(label="大模型 续写, step 100")
    compared = page.locator("#compare table").inner_text()
    assert "900.0" in compared
    assert "12.00" in compared
    assert "better" in compared
    assert [line for line in seen if not line.startswith(("file:", "data:"))] == []
