"""How fast a lake in a bucket takes and gives an artifact, beside s3fs alone on the same server.

    python benchmarks/remote_lake.py --megabytes 512

The server is moto's, a Python program in this very process: what counts are the ratios and the CPU seconds, those of
the server among them, not the megabytes a second. Published and staged bytes are hashed; those of s3fs are not.
"""

import argparse
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import s3fs
from moto.server import ThreadedMotoServer

from pamp_pipelines.lake.artifact import read_artifact
from pamp_pipelines.lake.catalogue import refresh
from pamp_pipelines.lake.integrity import require_intact_artifact
from pamp_pipelines.lake.manifest import Manifest
from pamp_pipelines.lake.mirror import attach
from pamp_pipelines.lake.publication import published
from pamp_pipelines.lake.publish import publish

FILES = 8
SMALL = 300


@contextlib.contextmanager
def timed(what: str, megabytes: float) -> Iterator[None]:
    start, cpu = time.monotonic(), time.process_time()
    yield
    seconds = time.monotonic() - start
    print(f"{what:<40} {seconds:8.2f} s {megabytes / seconds:8.0f} MB/s   CPU {time.process_time() - cpu:7.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    size = parser.parse_args().megabytes * 10**6
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    store = s3fs.S3FileSystem()
    store.mkdir("lake-benchmark")
    with tempfile.TemporaryDirectory() as folder:
        first = attach(Path(folder) / "first", "s3://lake-benchmark/lake", 10**12)
        second = attach(Path(folder) / "second", "s3://lake-benchmark/lake", 10**12)
        place = first.root / "exports/m/c/v0001/0000001"
        with publish(place, kind="hf_export", id="one") as draft:
            for number in range(FILES):
                (draft.dir / f"{number}.safetensors").write_bytes(os.urandom(size // FILES))
        with timed(f"publish {FILES} files", size / 1e6):
            published(draft.artifact)
        with timed("publish again", size / 1e6):
            published(draft.artifact)
        with timed("s3fs puts the same", size / 1e6):
            store.put(f"{place}/", "lake-benchmark/plain/", recursive=True)
        refresh(second)
        with timed("stage and compare", size / 1e6):
            require_intact_artifact(read_artifact(second.root / "exports/m/c/v0001/0000001"))
        with timed("s3fs gets the same", size / 1e6):
            store.get("lake-benchmark/plain/", f"{folder}/plain/", recursive=True)
        for number in range(SMALL):
            small = Manifest(kind="hf_export", id=str(number), content="c", created="", producer={"text": "x" * 2000})
            path = f"catalogue/exports/m/c/v0002/{number:07d}/manifest.json"
            first.store.write(path, small.model_dump_json().encode())
        third = attach(Path(folder) / "third", "s3://lake-benchmark/lake", 10**12)
        with timed(f"mirror a catalogue of {SMALL}", SMALL * 2e-3):
            refresh(third)
        with timed("open it again", SMALL * 2e-3):
            refresh(third)
    server.stop()


if __name__ == "__main__":
    main()
