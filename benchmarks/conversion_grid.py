"""Tensor, pipeline and expert parallel sizes of 1, 2 and 4: Megatron loads an import, saves it, and it is compared.

    python benchmarks/conversion_grid.py OUTPUT.json [FAMILY ...]

The tiny models are those of parity_gpu.py: four layers, two KV heads (fewer than ranks at TP 4), a vocabulary that is
padded. Each group of ranks is as many processes as TP x PP x EP, on the CPU; sizes beyond 16 are left out. What the
ranks save is read as an export reads it, and every element is compared with the import.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parity_gpu import FAMILIES, write_model

SIZES = (1, 2, 4)
MOST = 16


def measure(family: str, folder: Path, server: Any) -> dict[str, str]:
    """`equal`, or what differs, by parallel sizes; sizes that do not divide the model are left out."""
    from pamp_pipelines.conversion.importer import import_hf
    from pamp_pipelines.conversion.job import plain_import_job
    from pamp_pipelines.verification.divisions import division_problems
    from pamp_pipelines.verification.job import Division
    from pamp_pipelines.verification.reload import Reload, reload

    source, artifact = folder / family, folder / f"{family}-megatron"
    write_model(family, source)
    import_hf(plain_import_job(source, artifact, workers=1))
    config = json.loads((source / "config.json").read_text())
    found = {}
    for tensor, pipeline, expert in itertools.product(SIZES, repeat=3):
        division = Division(tensor=tensor, pipeline=pipeline, expert=expert)
        if division.processes > MOST or division_problems(config, division):
            continue
        checkpoint = artifact / "checkpoint" / "release"
        problems = reload(server, Reload(checkpoint, folder / family / str(division), config, division))
        found[str(division)] = "; ".join(problems) or "equal"
    return found


def main() -> None:
    from pamp_pipelines.verification import megatron_side

    output, *names = sys.argv[1:]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    megatron_side.prepare()
    from pamp_pipelines.verification.ranks import RankServer
    from pamp_pipelines.verification.reload import rank_main

    report = {}
    with RankServer(rank_main) as server, tempfile.TemporaryDirectory() as folder:
        for family in names or FAMILIES:
            started = time.monotonic()
            report[family] = measure(family, Path(folder), server)
            equal = sum(result == "equal" for result in report[family].values())
            print(
                f"{family}: {equal} of {len(report[family])} equal, {time.monotonic() - started:.0f} s", file=sys.stderr
            )
            Path(output).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
