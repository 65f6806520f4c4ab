"""Which installed fonts draw a picture's text, so that names in Chinese, Japanese and Korean are not boxes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

FIRST = "DejaVu Sans"  # comes with Matplotlib
EAST_ASIAN = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans GB"),
    *("Microsoft YaHei", "SimHei", "Arial Unicode MS"),
)
"""Tried in this order, then whatever has CJK in its name."""


@cache
def families() -> tuple[str, ...]:
    """Installed font families, in the order in which each character looks for one that has it."""
    from matplotlib import font_manager

    installed = sorted({font.name for font in font_manager.fontManager.ttflist})
    others = [name for name in installed if "CJK" in name and name not in EAST_ASIAN]
    return (FIRST, *(name for name in EAST_ASIAN if name in installed), *others)


def undrawn(texts: Iterable[str]) -> str:
    """Characters that no installed font has, each once."""
    from matplotlib import font_manager

    left = sorted({character for text in texts for character in text if character.isprintable()})
    for name in families():
        if not left:
            break
        drawn = font_manager.get_font(font_manager.findfont(name)).get_charmap()
        left = [character for character in left if ord(character) not in drawn]
    return "".join(left)
