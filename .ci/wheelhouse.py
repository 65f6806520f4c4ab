"""Every locked package as a wheel, for a machine that reaches no index: ``python .ci/wheelhouse.py FOLDER [NAME ...]``.

Run on a connected machine of the target's kind (same operating system, processor and Python 3.12). FOLDER gets

* a wheel of each package of requirements.lock and requirements-data.lock, checked against its hash and, where the index
  has only a source archive, built from that;
* uv and what builds the project, with their dependencies;
* requirements.txt and requirements-data.txt, which name those wheels with their own hashes.

Given NAMEs, only those packages of the two locks are gathered. pip takes its settings, a mirror for one, from the
environment as always.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {"requirements.lock": "requirements.txt", "requirements-data.lock": "requirements-data.txt"}
BUILDERS = ("uv>=0.7", "pip", "hatchling>=1.27,<2", "editables")
"""What `make setup` needs besides the locks."""
_REQUIREMENT = re.compile(r"^[A-Za-z0-9]", re.MULTILINE)


def requirements(lock: str) -> dict[str, str]:
    """Requirements of a lock by normal name, each with its marker and hashes."""
    starts = [match.start() for match in _REQUIREMENT.finditer(lock)] + [len(lock)]
    blocks = [lock[a:b] for a, b in pairwise(starts)]
    without_comments = [
        "".join(line for line in b.splitlines(True) if not line.lstrip().startswith("#")) for b in blocks
    ]
    return {canonicalize_name(re.split(r"[=\s;\[]", block, maxsplit=1)[0]): block for block in without_comments}


def gather(folder: Path, names: list[str]) -> None:
    """Fill ``folder``; wheels that are there already are kept and checked."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {canonicalize_name(name) for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        pip = _pip(Path(temporary))
        for lock, listed in LOCKS.items():
            found = requirements((ROOT / lock).read_text())
            chosen = {name: text for name, text in found.items() if not wanted or name in wanted}
            if not chosen:
                continue
            file = Path(temporary) / lock
            file.write_text("".join(chosen.values()))
            _wheels(pip, folder, ["--no-deps", "--require-hashes", "-r", str(file)])
            (folder / listed).write_text(pinned(folder, set(chosen)))
        if not names:
            _wheels(pip, folder, list(BUILDERS))
            _wheels(pip, folder, ["--no-deps", str(ROOT)])


def pinned(folder: Path, names: set[str]) -> str:
    """Requirements that name the wheels of ``folder`` by version and hash."""
    lines = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        if name in names:
            with wheel.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    return "".join(lines)


def _pip(folder: Path) -> list[str]:
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    return [str(folder / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check"]


def _wheels(pip: list[str], folder: Path, arguments: list[str]) -> None:
    subprocess.run([*pip, "wheel", "--quiet", "--wheel-dir", str(folder), *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    gather(arguments.folder, arguments.names)
    wheels = list(arguments.folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{arguments.folder}: {len(wheels)} wheels, {size / 1e9:.2f} GB; make setup WHEELHOUSE={arguments.folder}")


if __name__ == "__main__":
    main()
