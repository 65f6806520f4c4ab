"""Writes ``docs/architectures.md`` from the tables: ``python -m pamp_pipelines.conversion.tables_page``."""

from __future__ import annotations

import re
from pathlib import Path

from pamp_pipelines.conversion.architectures import ARCHITECTURES, Architecture, Entry, Layers, Op
from pamp_pipelines.conversion.architectures import table as vocabulary

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"

_OPERATIONS = {
    Op.IDENTITY: "as it is",
    Op.JOIN: "one after the other",
    Op.GROUP_QKV: "grouped by KV head: queries, key, value",
}

_HEAD = """# Architectures

This page is generated from the tables in `pamp_pipelines/conversion/architectures/`
(`python -m pamp_pipelines.conversion.tables_page`); a test keeps it equal to the code. Import, export and verification
read the same tables. How to add a family: [adding-a-model.md](adding-a-model.md).

A key under `decoder.layers.` is one tensor stacked over all layers where the layers of a model are alike. Where some
have experts and some have not, each layer has keys of its own, `decoder.layers.<i>.`. Layers of multi-token prediction
always have. "TP axis" is the axis that Megatron splits over tensor-parallel ranks, counted without layers and experts.
Weights stored as 8-bit floats with block scales (`quantization_config` of method `fp8` with `weight_block_size`) are
dequantised to bfloat16 on import. A sliding window is trained with as transformers reads it: a token sees itself and
`sliding_window` - 1 tokens before it. A family without that line has none.

Axes:

"""


def page() -> str:
    """The whole page as Markdown."""
    legend = (vocabulary.__doc__ or "").partition("gives their sizes)\n")[2].rstrip()
    parts = [_HEAD, "```\n", legend, "\n```\n"]
    for architecture in ARCHITECTURES:
        parts.append(_section(architecture))
    return "".join(parts)


def _section(architecture: Architecture) -> str:
    classes = ", ".join(f"`{name}`" for name in architecture.classes)
    types = ", ".join(f"`{name}`" for name in architecture.model_types)
    lines = [
        f"\n## {architecture.name}\n\n{classes}; `model_type` {types}\n",
        "| checkpoint key | axes | Hugging Face tensors | rows | layers | when | TP axis |",
        "|---|---|---|---|---|---|---|",
        *(_row(entry) for entry in architecture.entries),
        *([f"\nSliding window: {architecture.window_text}."] if architecture.window_text else []),
    ]
    return "\n".join(lines) + "\n"


def _row(entry: Entry) -> str:
    # {layer} and {expert} as indices; the names of Hugging Face below the layer are enough
    names = [re.sub(r"^model\.layers\.\{layer\}\.", "…", source.name) for source in entry.sources]
    sources = "<br>".join(f"`{name}` [{', '.join(s.axes)}]" for name, s in zip(names, entry.sources, strict=True))
    layers = "" if entry.layers is Layers.ALL else entry.layers.value
    axis = "" if entry.tensor_parallel_axis is None else str(entry.tensor_parallel_axis)
    cells = (
        f"`{entry.key}`",
        ", ".join(entry.axes),
        sources,
        _OPERATIONS[entry.op],
        layers,
        "" if entry.when.text == "always" else entry.when.text,
        axis,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
