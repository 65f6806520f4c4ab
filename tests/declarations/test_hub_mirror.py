"""Models at sites without the hub: a mirror named by HF_ENDPOINT, and directories that ModelScope made."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pamp_pipelines.conversion.template import template_files
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.declarations.hf_config import hf_directory
from pamp_pipelines.project import Project

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights"}

ASK = """
import sys
from pathlib import Path
from pamp_pipelines.declarations.hf_config import hf_directory
from pamp_pipelines.declarations.model import Model
from pamp_pipelines.project import Project
model = Model(hf={"id": "org/tiny", "revision": sys.argv[1]})
print(hf_directory(Project(Path.cwd()), model))
"""


class Mirror(http.server.BaseHTTPRequestHandler):
    """As much of the hub's API as fetching a model at a commit needs."""

    asked: list[str] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        name = self.path.partition(f"/org/tiny/resolve/{COMMIT}/")[2]
        if self.path.startswith(f"/api/models/org/tiny/revision/{COMMIT}"):
            siblings = [{"rfilename": file} for file in FILES]
            self._answer(json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode(), "info")
        elif self.path.startswith(f"/api/models/org/tiny/tree/{COMMIT}"):
            tree = [
                {"type": "file", "path": f, "size": len(b), "oid": f"{n:040x}"}
                for n, (f, b) in enumerate(FILES.items())
            ]
            self._answer(json.dumps(tree).encode(), "tree")
        elif name in FILES:
            self._answer(FILES[name], name)
        else:
            self.send_error(404)

    def _answer(self, body: bytes, name: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(name.encode() + body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def mirror() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def ask(cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Where a process of its own finds the model: the hub's client reads its variables when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", ASK, COMMIT],
        env={**kept, "HF_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_a_model_comes_from_the_mirror_and_then_from_the_cache(mirror: str, tmp_path: Path) -> None:
    fetched = ask(tmp_path, HF_ENDPOINT=mirror)
    assert fetched.returncode == 0, fetched.stderr
    directory = Path(fetched.stdout.strip())
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == FILES
    assert any(path.startswith("/api/models/org/tiny") for path in Mirror.asked)

    asked = len(Mirror.asked)
    again = ask(tmp_path, HF_HUB_OFFLINE="1")
    assert again.stdout == fetched.stdout, again.stderr
    assert len(Mirror.asked) == asked

    nowhere = ask(tmp_path / "empty", HF_HUB_OFFLINE="1")
    assert nowhere.returncode != 0
    assert "org/tiny at revision" in nowhere.stderr
    assert "give a local `hf.path`" in nowhere.stderr


def test_a_directory_of_modelscope_is_a_model(own_project: Project, tmp_path: Path) -> None:
    """Its cache spells a dot as three underscores, and keeps records of its own beside the files."""
    cache = tmp_path / "modelscope/hub/models/Qwen/Qwen3-0___6B"
    source = own_project.data / "models/imported"
    cache.mkdir(parents=True)
    for file in source.iterdir():
        (cache / file.name).write_bytes(file.read_bytes())
    for name in (".msc", ".mv", ".mdl"):
        (cache / name).write_bytes(b"\x80\x04pickled")
    (cache / "._____temp").mkdir()
    (cache / "configuration.json").write_text('{"framework": "pytorch", "task": "text-generation"}')
    (own_project.assets / "models/imported.yaml").write_text(f"hf:\n  path: {cache}\n")
    catalog = load_catalog(own_project)
    assert hf_directory(own_project, catalog.model("imported")) == cache
    kept, code = template_files(cache)
    assert code == []
    assert {file.name for file in kept} == {f.name for f in template_files(source)[0]} | {"configuration.json"}
