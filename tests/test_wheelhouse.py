"""`make wheelhouse` on a package made here, without an index; the install that `make setup WHEELHOUSE=…` does of it."""

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import REPOSITORY

UV = REPOSITORY / ".uv/bin/uv"


@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a repository whose lock names one small wheel, with an index that is a folder."""
    spec = importlib.util.spec_from_file_location("wheelhouse", REPOSITORY / ".ci/wheelhouse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    index = tmp_path / "index"
    digest = make_wheel(index, "tiny-part", "1.2")
    (tmp_path / "requirements.lock").write_text(
        f"# made by hand\ntiny-part==1.2 ; python_version >= '3' \\\n    --hash=sha256:{digest}\n    # via nobody\n"
        f"windows-only==9 ; sys_platform == 'win32' \\\n    --hash=sha256:{'0' * 64}\n"
    )
    (tmp_path / "requirements-data.lock").write_text("")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return module


def make_wheel(folder: Path, name: str, version: str) -> str:
    """A wheel with one module; returns its SHA-256."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        f"{name.replace('-', '_')}.py": "ANSWER = 42\n",
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_record_hash(text)},{len(text)}\n" for path, text in files.items())
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{stem}.dist-info/RECORD": record + f"{stem}.dist-info/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def _record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


@pytest.mark.slow
def test_what_was_gathered_is_installed_without_an_index(wheelhouse: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "wheelhouse"
    wheelhouse.gather(folder, ["Tiny_Part", "windows-only"])
    assert [file.name for file in folder.glob("*.whl")] == ["tiny_part-1.2-py3-none-any.whl"]
    listed = (folder / "requirements.txt").read_text()
    assert listed.startswith("tiny-part==1.2 --hash=sha256:")
    assert listed.count("\n") == 1
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    arguments = ["--no-index", "--find-links", str(folder), "--require-hashes", "-r", str(folder / "requirements.txt")]
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)
    found = subprocess.run([str(python), "-c", "import tiny_part; print(tiny_part.ANSWER)"], capture_output=True)
    assert found.stdout == b"42\n"


def test_every_requirement_of_the_locks_is_read(wheelhouse: ModuleType) -> None:
    for lock in wheelhouse.LOCKS:
        text = (REPOSITORY / lock).read_text()
        found = wheelhouse.requirements(text)
        assert len(found) == sum("==" in line and not line.startswith((" ", "#")) for line in text.splitlines())
        assert all("--hash=sha256:" in block for block in found.values())


def test_setup_takes_everything_from_the_wheelhouse() -> None:
    """Each command of `make setup` that fetches something is told to look there and nowhere else."""
    shown = subprocess.run(
        ["make", "-n", "-B", "setup", "WHEELHOUSE=/media/wheelhouse"], cwd=REPOSITORY, capture_output=True, text=True
    ).stdout
    assert 'offline=(--no-index --find-links "/media/wheelhouse")' in shown
    assert 'lock="/media/wheelhouse/requirements.txt" data_lock="/media/wheelhouse/requirements-data.txt"' in shown
    fetching = [line for line in shown.splitlines() if "pip install" in line or "pip sync" in line]
    assert len(fetching) == 4
    assert all('"${offline[@]}"' in line for line in fetching)


@pytest.fixture
def setup(tmp_path: Path) -> Callable[[Path], subprocess.CompletedProcess[str]]:
    """`make setup` in a clone, with a uv that only writes its arguments down, one a line."""
    clone = tmp_path / "clone"
    (tools := tmp_path / "tools").mkdir()
    clone.mkdir()
    for name in ("Makefile", "requirements.lock", "requirements-data.lock", "pyproject.toml", ".python-version"):
        (clone / name).write_text((REPOSITORY / name).read_text())
    uv = tools / "uv"
    uv.write_text(
        f"""#!/bin/sh
printf '%s\\n' "$@" >> '{tmp_path}/asked'
[ "$1" = venv ] || exit 0
mkdir -p .venv/bin && printf '#!/bin/sh\\n' > .venv/bin/python && chmod +x .venv/bin/python
"""
    )
    uv.chmod(0o755)

    def run(wheelhouse: Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        command = ["make", "setup", f"WHEELHOUSE={wheelhouse}"]
        return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)

    return run


def test_a_folder_that_is_no_wheelhouse_is_named(
    setup: Callable[[Path], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (empty := tmp_path / "empty").mkdir()
    for folder in (empty, tmp_path / "missing"):
        done = setup(folder)
        assert done.returncode
        assert f"WHEELHOUSE={folder}: no requirements.txt and requirements-data.txt there" in done.stderr
    assert not (tmp_path / "asked").exists(), "before anything is made"


def test_a_wheelhouse_may_lie_in_a_folder_with_a_space(
    setup: Callable[[Path], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (folder := tmp_path / "USB stick").mkdir()
    for name in ("requirements.txt", "requirements-data.txt"):
        (folder / name).touch()
    done = setup(folder)
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [asked[i + 1] for i, word in enumerate(asked) if word == "--find-links"] == [str(folder)] * 3
    assert {str(folder / "requirements.txt"), str(folder / "requirements-data.txt")} <= set(asked)
