"""Take the README's pictures from a running UI: ``python docs/images/capture.py http://127.0.0.1:3000 REPORT.html``.

Run `make demo` and `make dev` first. Needs Chromium (CHROMIUM, default /usr/bin/chromium) and Pillow. Palette PNGs keep
each picture below 200 kB.
"""

import io
import os
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
MAX_BYTES = 200_000
SETTLE_MS = 2500


def open_page(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(SETTLE_MS)


def save(page: Page, name: str, clip: dict[str, int] | None = None, width: int | None = None) -> None:
    """Write a palette PNG, ``width`` pixels wide."""
    picture = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")  # type: ignore[arg-type]
    if width:
        picture = picture.resize((width, picture.height * width // picture.width), Image.Resampling.LANCZOS)
    file = HERE / f"{name}.png"
    picture.quantize(96, dither=Image.Dither.NONE).save(file, optimize=True)
    size = file.stat().st_size
    print(f"{file.name}: {picture.width} x {picture.height}, {size // 1000} kB")
    assert size < MAX_BYTES, f"{file} is larger than {MAX_BYTES} bytes"


def graph(page: Page, ui: str) -> None:
    """All groups opened; the sidebar and the frame are cut away."""
    page.set_viewport_size({"width": 2700, "height": 1150})
    open_page(page, f"{ui}/asset-groups")
    page.get_by_text("Hide navigation").click()
    page.keyboard.press("Alt+e")
    page.wait_for_timeout(SETTLE_MS * 2)
    boxes = [group.bounding_box() for group in page.locator("foreignObject").all()]
    found = [box for box in boxes if box]
    left, top = min(b["x"] for b in found) - 20, min(b["y"] for b in found) - 20
    right = max(b["x"] + b["width"] for b in found) + 20
    bottom = max(b["y"] + b["height"] for b in found) + 20
    save(
        page,
        "asset-graph",
        {"x": int(left), "y": int(top), "width": int(right - left), "height": int(bottom - top)},
        width=1800,
    )


def training_run(page: Page, ui: str, partition: str) -> None:
    """One partition of the training asset, with its loss curve opened."""
    page.set_viewport_size({"width": 1300, "height": 860})
    open_page(page, f"{ui}/assets/pretrained_checkpoint?view=partitions&partition={partition}")
    page.get_by_text("[Show Markdown]").first.click()
    page.wait_for_timeout(SETTLE_MS)
    save(page, "training-run")


def leaderboard(page: Page, ui: str) -> None:
    page.set_viewport_size({"width": 1500, "height": 720})
    open_page(page, f"{ui}/assets/leaderboard?view=events")
    save(page, "leaderboard")


def report(page: Page, file: Path) -> None:
    page.set_viewport_size({"width": 1200, "height": 900})
    open_page(page, file.resolve().as_uri())
    save(page, "report")


def main(ui: str, report_file: str, partition: str = "shakespeare-tiny%7Cshakespeare-scratch") -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        graph(page, ui)
        training_run(page, ui, partition)
        leaderboard(page, ui)
        report(page, Path(report_file))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
