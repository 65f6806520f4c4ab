"""An artifact appears whole or not at all, and is built once."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from pamp_pipelines.errors import InputError, PampError, VerificationFailed
from pamp_pipelines.lake import publish as publishing
from pamp_pipelines.lake.artifact import find, read_artifact, require_passed
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.lake.publish import lock, publish


def build(final: Path, id: str = "one", text: str = "hello", **more):
    with publish(final, kind="raw_corpus", id=id, **more) as draft:
        (draft.dir / "sub").mkdir()
        (draft.dir / "sub/file.txt").write_text(text)
        draft.stats["documents"] = 1
    return draft.artifact


def names(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir() if not f.name.endswith((".lock", ".intact.json")))


def test_what_is_published_is_read_back(tmp_path):
    source = build(tmp_path / "source")
    made = build(tmp_path / "final", inputs=[source], declaration={"x": 1})
    read = read_artifact(tmp_path / "final", verify="hash")
    assert read == made
    assert read.manifest.inputs == (source.ref,)
    assert [(f.path, f.bytes) for f in read.manifest.files] == [("sub/file.txt", 5)]
    assert read.bytes == 5
    assert read.manifest.stats == {"documents": 1}
    assert read.manifest.producer["pamp_pipelines"]
    assert find(tmp_path / "final", "one") == made
    assert find(tmp_path / "final", "two") is None
    assert find(tmp_path / "absent", "one") is None


def test_content_is_of_the_files_alone(tmp_path):
    assert build(tmp_path / "a").content == build(tmp_path / "b", id="other", declaration={"y": 2}).content
    assert build(tmp_path / "c", text="hallo").content != build(tmp_path / "a").content


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError), publish(tmp_path / "final", kind="raw_corpus", id="i") as draft:
        (draft.dir / "folder/that/is/not/there").write_text("x")
    assert names(tmp_path) == []
    with pytest.raises(RuntimeError):
        _ = draft.artifact


def test_a_full_disk_is_named_and_keeps_the_old_artifact(tmp_path):
    old = build(tmp_path / "final")
    with (
        pytest.raises(PampError, match="no space left on the disk"),
        publish(tmp_path / "final", kind="raw_corpus", id="i"),
    ):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == ["final"]
    assert read_artifact(tmp_path / "final", verify="hash") == old


@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_older_artifact_is_replaced(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(publishing, "exchange", lambda *_: False)
    build(tmp_path / "final")
    new = build(tmp_path / "final", id="two", text="new")
    assert read_artifact(tmp_path / "final", verify="hash") == new
    assert names(tmp_path) == ["final"]


BUILDER = """
import sys, time
from pathlib import Path
from pamp_pipelines.lake.publish import lock, publish
final = Path(sys.argv[1])
with lock(final), publish(final, kind="k", id="i") as draft:
    (draft.dir / "file").write_text("half")
    print("building", flush=True)
    time.sleep(60)
"""


def test_a_killed_build_blocks_nobody_and_is_swept(tmp_path):
    final = tmp_path / "final"
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, str(final)], stdout=subprocess.PIPE)
    assert builder.stdout.readline() == b"building\n"
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    assert not final.exists()
    assert len(names(tmp_path)) == 1
    start = time.monotonic()
    with lock(final):
        assert find(final, "one") is None
        build(final)
    assert time.monotonic() - start < 5
    assert names(tmp_path) == ["final"]


def build_once(final: Path) -> bool:
    """Whether this process had to build it."""
    with lock(final):
        if find(final, "one"):
            return False
        with publish(final, kind="k", id="one") as draft:
            (draft.dir / "file").write_text("x")
            time.sleep(0.3)
        return True


def test_two_processes_build_it_once(tmp_path):
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        built = list(pool.map(build_once, [tmp_path / "final"] * 4))
    assert sum(built) == 1


def test_damage_is_found_and_named(tmp_path):
    build(tmp_path / "final")
    file = tmp_path / "final/sub/file.txt"
    file.write_text("jello")  # the same size
    assert find(tmp_path / "final", "one") is not None
    with pytest.raises(VerificationFailed, match=r"file\.txt: SHA-256"):
        read_artifact(tmp_path / "final", verify="hash")
    file.write_text("longer")
    with pytest.raises(VerificationFailed, match="6 bytes, the manifest says 5"):
        read_artifact(tmp_path / "final")
    assert find(tmp_path / "final", "one") is None
    file.unlink()
    with pytest.raises(VerificationFailed, match="missing"):
        read_artifact(tmp_path / "final")
    read_artifact(tmp_path / "final", verify="none")
    (tmp_path / "final/manifest.json").write_text("{")
    with pytest.raises(InputError, match="not a readable manifest"):
        read_artifact(tmp_path / "final")
    (tmp_path / "final/manifest.json").unlink()
    with pytest.raises(InputError, match="never finished"):
        read_artifact(tmp_path / "final")


def test_a_failed_error_check_blocks_and_a_warning_does_not(tmp_path):
    with publish(tmp_path / "final", kind="raw_corpus", id="i") as draft:
        draft.checks.append(CheckResult(name="hint", passed=False, severity="WARN", description="only a hint"))
    assert require_passed(draft.artifact) is draft.artifact
    with publish(tmp_path / "final", kind="raw_corpus", id="i") as draft:
        draft.checks.append(CheckResult(name="sums", passed=False, description="1 is not 2"))
    with pytest.raises(VerificationFailed, match="sums: 1 is not 2"):
        require_passed(draft.artifact)


def test_a_build_leaves_alone_what_others_of_a_longer_name_write(tmp_path):
    theirs = [".qwen2.5.0a1b2c3d.partial", ".qwen2.5.0a1b2c3d.run.partial", ".qwen2.5.0a1b2c3d.old.partial"]
    ours = [".qwen2.0a1b2c3d.partial", ".qwen2.0a1b2c3d.run.partial", ".qwen2.0a1b2c3d.old.partial"]
    for name in theirs + ours:
        (tmp_path / name).mkdir()
    build(tmp_path / "qwen2")
    assert names(tmp_path) == sorted([*theirs, "qwen2"])
    (tmp_path / ".[ab].0a1b2c3d.partial").mkdir()
    build(tmp_path / "[ab]")
    assert names(tmp_path) == sorted([*theirs, "[ab]", "qwen2"])


def test_who_waits_for_another_build_says_so(tmp_path):
    final = tmp_path / "final"
    seen = []
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, str(final)], stdout=subprocess.PIPE)
    assert builder.stdout.readline() == b"building\n"

    def heard(event):
        seen.append(event)
        builder.kill()

    with lock(final, heard):
        pass
    builder.communicate()
    assert [(event.kind, event.data["message"]) for event in seen] == [
        ("warning", f"{final}: another process writes it; waiting until that one has ended")
    ]
    with lock(final, seen.append):
        pass
    assert len(seen) == 1
