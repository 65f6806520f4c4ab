"""Shared fixtures: a tiny but complete project, made of real parts."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import settings

from pamp_pipelines.project import Project
from tests import postgres_server

REPOSITORY = Path(__file__).parent.parent
DATA = REPOSITORY / "data"

# A property holds or it does not; how long an example took says what else the machine was doing.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def make_tiny_project(root: Path) -> Project:
    """Two corpora, two models, two training configs and two evaluations: every stage takes seconds on one core.

    The YAML is tests/fixtures/project; text and tokenizer are cut from data/; `imported` is a Hugging Face directory
    with random weights.
    """
    shutil.copytree(REPOSITORY / "tests/fixtures/project", root, dirs_exist_ok=True)
    data = root / "data"
    (data / "corpora/plays").mkdir(parents=True)
    sonnets = (DATA / "corpora/shakespeare/sonnets.jsonl").read_text().splitlines(keepends=True)
    (data / "corpora/sonnets.jsonl").write_text("".join(sonnets[:60]))
    scenes = (DATA / "corpora/shakespeare/hamlet.jsonl").read_text().splitlines()
    for number, scene in enumerate(scenes[:12]):
        (data / f"corpora/plays/{number:02d}.txt").write_text(json.loads(scene)["text"][:4000])
    sums = (DATA / "arithmetic/add1.jsonl").read_text().splitlines(keepends=True)
    (data / "sums.jsonl").write_text("".join(sums[:8]))
    shutil.copytree(DATA / "tokenizers/shakespeare-bpe-2k", data / "tokenizer")
    write_hf_model(data / "models/imported", data / "tokenizer")
    return Project(root)


def write_hf_model(directory: Path, tokenizer: Path) -> None:
    """The architecture of the model `scratch` with random weights as a Hugging Face directory."""
    import numpy as np
    from safetensors.numpy import save_file

    declared = yaml.safe_load((REPOSITORY / "tests/fixtures/project/assets/models/scratch.yaml").read_text())
    config = declared["from_scratch"]["config"]
    hidden, mlp, kv = 32, 64, 16
    random = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (2048, hidden), "model.norm.weight": (hidden,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj.weight": (hidden, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, hidden),
            f"{prefix}.mlp.gate_proj.weight": (mlp, hidden),
            f"{prefix}.mlp.up_proj.weight": (mlp, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, mlp),
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
        }
    tensors = {
        name: (1 if len(shape) == 1 else 0) + random.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    directory.mkdir(parents=True)
    save_file({n: t.astype(np.float32) for n, t in tensors.items()}, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    for file in tokenizer.iterdir():
        shutil.copy(file, directory)


@pytest.fixture(scope="session")
def tiny_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Shared by the session: do not write into its declarations."""
    return make_tiny_project(tmp_path_factory.mktemp("tiny") / "project")


@pytest.fixture
def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A tiny project of the test's own, with its lake and Dagster home inside."""
    monkeypatch.delenv("PAMP_LAKE", raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return make_tiny_project(tmp_path / "project")


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Path]]:
    """Makes an empty disk of so many bytes: a tmpfs where this user may mount one.

    Elsewhere, as in an unprivileged container, it is a folder, and in workers every fsync fails as on a full disk.
    """
    mounted: list[Path] = []

    def make(size: int) -> Path:
        disk = tmp_path / f"disk{len(mounted)}"
        disk.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, text=True
        )
        if done.returncode == 0:
            mounted.append(disk)
            return disk
        print(f"no disk of {size} bytes can be mounted ({done.stderr.strip()}): fsync fails in workers instead")
        folder = tmp_path / "no-space"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            "import errno, os\ndef fsync(fd):\n    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
            "os.fsync = fsync\n"
        )
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
        return disk

    yield make
    for disk in mounted:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture(scope="session")
def _postgres() -> Iterator[postgres_server.PostgresServer]:
    if absent := postgres_server.missing():
        message = f"not installed: {', '.join(absent)}; on Debian: apt-get install postgresql"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    server = postgres_server.PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def postgres(
    _postgres: postgres_server.PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[postgres_server.PostgresServer]:
    """A server with an empty database; Dagster's settings for a team point at it."""
    with _postgres.new_database() as environment:
        for name, value in {"PAMP_INSTANCE": "team", **environment}.items():
            monkeypatch.setenv(name, value)
        yield _postgres
