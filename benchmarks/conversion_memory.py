"""Peak anonymous memory of an import at few and many layers and experts: what `pamp import-hf --plan` bounds.

    python benchmarks/conversion_memory.py [--directory DIR]

The model is DeepSeek-V3 with narrow layers, in 8-bit floats; its weights are holes of sparse files, so that only the
checkpoint takes room on disk (0.9 GB at the full 61 layers of 256 experts). The conversion is the real one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from conversion import convert
from conversion_plan import CONFIG, NARROW, write_headers

CASES = ((8, 16), (61, 16), (8, 256), (61, 256))
_SHARD_BYTES = 2_500_000
"""About as many files as the release has; the header of one file is in memory at a time."""


def measure(layers: int, experts: int, folder: Path) -> dict[str, Any]:
    """One import by one worker process."""
    from pamp_pipelines.conversion.importer import describe_plan
    from pamp_pipelines.conversion.job import ImportJob

    source = folder / "source"
    source.mkdir()
    config = {**CONFIG, **NARROW, "num_hidden_layers": layers, "n_routed_experts": experts}
    write_headers(source, config, _SHARD_BYTES)
    job = ImportJob(name="memory", id="memory", output=folder / "unused", source=source, workers=1)
    plan = describe_plan(job)
    found = convert("import", source, folder / "imported", 1)
    shutil.rmtree(folder)
    return {
        "layers": layers,
        "experts": experts,
        "checkpoint_mb": plan["checkpoint_bytes"] // 2**20,
        "chunks": plan["chunks"],
        "bound_mb": plan["peak_memory_bytes"] // 2**20,
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where the files go; default: a temporary directory")
    args = parser.parse_args()
    for layers, experts in CASES:
        folder = Path(tempfile.mkdtemp(dir=args.directory))
        print(json.dumps(measure(layers, experts, folder)), flush=True)


if __name__ == "__main__":
    main()
