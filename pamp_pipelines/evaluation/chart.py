"""Pictures: scores against trained tokens, and loss curves. Matplotlib, one look for all."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pamp_pipelines.evaluation.fonts import families

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2a6fdb", "#d9622b", "#2f9e6e", "#8f5bd6", "#c2410c", "#0e9aa7", "#b83280", "#5f6b7a")
INK, FAINT, GRID = "#1f2733", "#667085", "#e6e9ef"
MARKERS = "os^Dv<>P"
MOST_MARKERS = 40  # points of a line, beyond which markers would hide it
PALETTE = 64  # colours of a picture

Series = Mapping[str, Sequence[tuple[float, float, float | None]]]
"""Name -> points (x, y, standard error or None), sorted by x."""


def score_chart(long: pd.DataFrame, metrics: Sequence[tuple[str, str, str]]) -> bytes:
    """PNG: one panel per (evaluation, task, metric), a line per model and config, bars of one standard error."""
    names = sorted({series_name(row) for row in long[["model", "training_config", "version"]].to_dict("records")})
    panels = []
    for evaluation, task, metric in metrics:
        rows = long[(long.evaluation == evaluation) & (long.task == task) & (long.metric == metric)]
        better = rows["higher_is_better"].dropna()
        arrow = "" if better.empty else "   higher is better" if bool(better.iloc[0]) else "   lower is better"
        limits = sorted({int(limit) for limit in rows["limit"].dropna()})
        cut = f"   first {', '.join(map(str, limits))} rows" if limits else ""
        panels.append((metric.replace("_", " "), f"{evaluation}{cut}{arrow}", _by_series(rows)))
    return _draw(panels, names, "tokens trained on", legend=True)


def loss_chart(losses: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], columns: int = 2) -> bytes:
    """PNG: per run its training loss as a line with its validation loss as points, and the gap between them.

    Args:
        losses: run -> {``loss``, ``validation_loss``} -> (tokens, nats per token).
        columns: panels a row.
    """
    panels = []
    for run, curves in losses.items():
        series = {
            name.replace("_loss", "").replace("loss", "training"): [(x, y, None) for x, y in points]
            for name, points in curves.items()
            if points
        }
        model, _, config = run.partition(" · ")
        panels.append((model, f"{config}   loss, nats a token", series))
        if gaps := gap_curve(curves):
            panels.append((model, f"{config}   gap of validation to training loss, %", {"gap": gaps}))
    names = ["training", "validation", "gap"]
    return _draw(panels, names, "tokens trained on", legend=True, dense={"training"}, columns=columns)


def gap_curve(curves: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[float, float, None]]:
    """Validation loss above training loss in percent, where both are known; training is the mean of the last ten."""
    training = sorted(curves.get("loss", ()))
    gaps: list[tuple[float, float, None]] = []
    for tokens, validation in sorted(curves.get("validation_loss", ())):
        before = [loss for x, loss in training if x <= tokens][-10:]
        if before and (mean := sum(before) / len(before)) > 0:
            gaps.append((tokens, 100 * (validation / mean - 1), None))
    return gaps


def series_name(row: Mapping[Any, Any]) -> str:
    """``model · config`` and the version when it is not the first."""
    parts = [str(row["model"])]
    if given(row["training_config"]):
        parts.append(str(row["training_config"]))
    if given(row["version"]) and int(row["version"]) > 1:
        parts.append(f"v{int(row['version'])}")
    return " · ".join(parts)


def given(value: Any) -> bool:
    """Whether a cell of a table holds something: neither None nor NaN nor pandas' NA."""
    return value is not None and value == value and str(value) != "<NA>"


def _by_series(rows: pd.DataFrame) -> dict[str, list[tuple[float, float, float | None]]]:
    series: dict[str, list[tuple[float, float, float | None]]] = {}
    for row in rows.to_dict("records"):
        x = float(row["tokens_seen"]) if given(row["tokens_seen"]) else 0.0
        error = float(row["stderr"]) if given(row["stderr"]) else None
        if not math.isfinite(row["value"]):
            continue  # the table says so; an axis cannot
        series.setdefault(series_name(row), []).append((x, float(row["value"]), error))
    return {name: sorted(points) for name, points in series.items()}


def _draw(
    panels: Sequence[tuple[str, str, Series]],
    names: Sequence[str],
    x_label: str,
    *,
    legend: bool,
    dense: frozenset[str] | set[str] = frozenset(),
    columns: int = 3,
) -> bytes:
    """Lay panels out, at most so many a row, and return PNG bytes: some 8 kB a panel, for Dagster's event log."""
    figure = _figure(len(panels), legend, columns)
    style = {name: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)}
    axes = figure.axes
    for axis, (title, subtitle, series) in zip(axes, panels, strict=False):
        _panel(axis, title, subtitle, series, style, dense)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis in axes[max(0, len(panels) - columns) : len(panels)]:
        axis.set_xlabel(x_label, color=FAINT, fontsize=9)
    if legend and names:
        figure.legend(
            handles=[_handle(*style[name], name) for name in names],
            loc="upper left",
            bbox_to_anchor=(0.01, 0.995),
            ncols=min(3, len(names)),
            frameon=False,
            fontsize=9,
            labelcolor=INK,
        )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return _fewer_colours(buffer)


def _fewer_colours(png: io.BytesIO) -> bytes:
    """The picture with a palette, a third of the size: many runs make many panels."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(png).convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def _figure(panels: int, legend: bool, columns: int) -> Figure:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["font.family"] = list(families())
    mpl.rcParams["axes.unicode_minus"] = False
    columns = min(columns, max(1, panels))
    rows = max(1, math.ceil(panels / columns))
    width = {1: 6.4, 2: 10.5}.get(columns, 12.4)
    figure = Figure(figsize=(width, 2.9 * rows + (0.45 if legend else 0.1)), facecolor="white")
    figure.subplots(rows, columns, squeeze=False)
    top = 1 - (0.45 if legend else 0.05) / figure.get_figheight()
    figure.set_layout_engine("constrained", rect=(0, 0, 1, top), w_pad=0.12, h_pad=0.1)
    return figure


def _panel(
    axis: Axes,
    title: str,
    subtitle: str,
    series: Series,
    style: Mapping[str, tuple[str, str]],
    dense: frozenset[str] | set[str],
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_title(f"{title}\n", loc="left", fontsize=11, color=INK, fontweight="bold")
    axis.text(0, 1.03, subtitle, transform=axis.transAxes, fontsize=8, color=FAINT)
    for name, points in series.items():
        colour, marker = style[name]
        x, y, errors = zip(*points, strict=True)
        if name in dense:
            axis.plot(x, y, color=colour, linewidth=1.4)
            continue
        if any(error for error in errors):
            bars = [error or 0.0 for error in errors]
            axis.errorbar(x, y, yerr=bars, color=colour, linewidth=0, elinewidth=1, capsize=2.5, alpha=0.55)
        size = 5 if len(x) <= MOST_MARKERS else 0
        axis.plot(x, y, color=colour, marker=marker, markersize=size, linewidth=1.8, markeredgecolor="white")
    values = [y for points in series.values() for _, y, _ in points]
    if values and min(values) > 0 and max(values) / min(values) > 20:
        axis.set_yscale("log")
        axis.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    elif values and max(values) <= 1 and min(values) >= 0:
        tops = [y + (error or 0.0) for points in series.values() for _, y, error in points]
        axis.set_ylim(-0.02, max(0.1, max(tops) * 1.1))
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axis.grid(color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=FAINT, labelsize=8, length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(GRID)


def _handle(colour: str, marker: str, name: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker=marker, markersize=5, linewidth=1.8, markeredgecolor="white", label=name)


def count(value: float) -> str:
    """1_500_000 -> 1.5M."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
