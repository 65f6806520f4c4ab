"""Pieces: the tokens of one task, with a marker that says that they are complete."""

import fcntl
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, NonNegativeInt, model_validator

from pamp_pipelines.corpus.batches import read_batches
from pamp_pipelines.corpus.fingerprints import unwritten
from pamp_pipelines.corpus.spans import Task
from pamp_pipelines.tokenization.duplicates import DIGEST
from pamp_pipelines.tokenization.encoders import Encoder, open_encoder
from pamp_pipelines.tokenization.filters import Filters
from pamp_pipelines.tokenization.heldout import held_out_rule
from pamp_pipelines.tokenization.indexed import TokenStream, dtype_for
from pamp_pipelines.tokenization.job import TokenizeJob
from pamp_pipelines.tokenization.minhash import MinHasher

TRAIN, HELDOUT = "train", "heldout"
SIDES = TRAIN, HELDOUT
HASHES, FINGERPRINTS = "hashes", "minhash"
"""Files of a side by which equal and similar texts are found."""
_SAMPLE_CHARACTERS = 2000


class Plan(BaseModel):
    """What is made of a job, in which pieces; pieces of another plan are of no use.

    Attributes:
        encoder: see ``encoders.choose_encoder``.
        tokens: of each file, as ``fingerprints.require_unchanged`` gives them.
    """

    model_config = ConfigDict(frozen=True)

    job: TokenizeJob
    encoder: str
    tokens: tuple[str, ...]
    tasks: tuple[Task, ...]


class Piece(BaseModel):
    """The completion marker of a task: what was read and what its files hold.

    Attributes:
        read: rows.
        text_bytes: UTF-8 text that was encoded.
        train, heldout: documents and tokens.
        files: name to size of each file, without the number of the task.
    """

    model_config = ConfigDict(frozen=True)

    read: NonNegativeInt
    text_bytes: NonNegativeInt
    dropped: dict[str, NonNegativeInt]
    train: tuple[NonNegativeInt, NonNegativeInt]
    heldout: tuple[NonNegativeInt, NonNegativeInt]
    files: dict[str, NonNegativeInt]

    @model_validator(mode="after")
    def _accounts_for_every_row(self) -> Self:
        if self.read != sum(self.dropped.values()) + self.train[0] + self.heldout[0]:
            raise ValueError(f"documents and drops are not the {self.read} rows that were read")
        return self


def _appear(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Not flushed to the disk: a piece is lost with the machine, and made again."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    temporary.rename(path)


OnBatch = Callable[[int, int, int], None]
"""Told after each batch: rows, bytes of text, tokens."""


class Staging:
    """The folder of the pieces, beside the artifact to be. It outlives a killed build, which then goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, output: Path) -> "Staging":
        return cls(output.parent / f".{output.name}.pieces")

    @contextmanager
    def opened(self, plan: Plan) -> Iterator[None]:
        """Take the folder over for ``plan``: wait for workers of a killed build, and clear what is of another plan."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            content = plan.model_dump_json().encode()
            if not self.plan_file.exists() or self.plan_file.read_bytes() != content:
                for path in self.folder.iterdir():
                    if path.name != "lock":
                        path.unlink()
                _appear(self.plan_file, content)
            fcntl.flock(stream, fcntl.LOCK_UN)
            yield

    def offer_tokenizer(self, content: bytes | None) -> None:
        """Give the workers ``Engine.fast_json``, whose making takes up to a second and 100 MB."""
        if content is not None:
            _appear(self._tokenizer_file, content)

    def offered_tokenizer(self) -> bytes | None:
        return self._tokenizer_file.read_bytes() if self._tokenizer_file.exists() else None

    @property
    def _tokenizer_file(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def plan_file(self) -> Path:
        return self.folder / "plan.json"

    def file(self, task: int, name: str) -> Path:
        return self.folder / f"{task:07}.{name}"

    def finished(self, task: int) -> Piece | None:
        """The marker of a task, if it is complete and its files have their sizes."""
        try:
            piece = Piece.model_validate_json(self.file(task, "json").read_bytes())
            if any(self.file(task, name).stat().st_size != size for name, size in piece.files.items()):
                return None
        except (OSError, ValueError):
            return None
        return piece

    def keep_finished(self) -> int:
        """Remove the files of pieces that are not complete, and the folder if none is; gives how many are.

        Nobody may write into it now.
        """
        finished: dict[int, bool] = {}
        for path in list(self.folder.glob("[0-9]*.*")):
            task = int(path.name.split(".")[0])
            if task not in finished:
                finished[task] = self.finished(task) is not None
            if not finished[task]:
                path.unlink(missing_ok=True)
        if not any(finished.values()):
            self.remove()
        return sum(finished.values())

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class PieceMaker:
    """Makes the pieces of a plan, one after another; the tokenizer is loaded once."""

    def __init__(self, plan: Plan, staging: Staging) -> None:
        job = plan.job
        self._plan = plan
        self._staging = staging
        self._encoder: Encoder = open_encoder(
            job.tokenizer.path, plan.encoder, job.tokenizer.sha256, staging.offered_tokenizer()
        )
        by = job.held_out.by if job.held_out.fraction else None
        self._filters = Filters(job.filters, also=[by] if by else [])
        self._by = self._filters.fields.index(by) if by else None
        self._minhash = MinHasher(self._filters.minhash) if self._filters.minhash else None
        self._is_held_out = held_out_rule(job.held_out.fraction, job.held_out.seed)

    def make(self, task: int, on_batch: OnBatch) -> Piece:
        """Read, encode and write one task; the marker comes last.

        Raises:
            InputError: a source is bad or was written meanwhile.
        """
        job = self._plan.job
        sides = [_Side(self._staging, task, name, job, self._filters.compares, self._minhash) for name in SIDES]
        dropped: Counter[str] = Counter()
        read = text_bytes = 0
        sample: list[dict[str, int | str]] = []
        with self._staging.file(task, "heldout.jsonl").open("wb") as heldout_text:
            for span in self._plan.tasks[task]:
                file = job.files[span.file]
                with unwritten(file, self._plan.tokens[span.file]):
                    for batch in read_batches(file, job.rules, span, job.batch_bytes, self._filters.fields):
                        rows = len(batch.texts) + len(batch.dropped)
                        dropped.update(row.reason for row in batch.dropped)
                        train, heldout = self._split(*self._filters.apply(batch.texts, batch.fields, dropped))
                        heldout_text.writelines(orjson.dumps({"text": text}) + b"\n" for text in heldout)
                        before = text_bytes
                        for side, chosen in zip(sides, (train, heldout), strict=True):
                            sample.extend(side.sample(chosen))
                            text_bytes += side.add(chosen, self._encoder)
                        read += rows
                        on_batch(rows, text_bytes - before, sum(side.stream.tokens for side in sides))
        for side in sides:
            side.close()
        self._staging.file(task, "sample.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in sample))
        counts = [(side.stream.documents, side.stream.tokens) for side in sides]
        names = [name for side in sides for name in side.files] + ["heldout.jsonl", "sample.jsonl"]
        piece = Piece(
            read=read,
            text_bytes=text_bytes,
            dropped=dict(dropped),
            train=counts[0],
            heldout=counts[1],
            files={name: self._staging.file(task, name).stat().st_size for name in names},
        )
        _appear(self._staging.file(task, "json"), piece.model_dump_json().encode())
        return piece

    def _split(self, texts: list[str], fields: Sequence[Sequence[Any]]) -> tuple[list[str], list[str]]:
        if not self._plan.job.held_out.fraction:
            return texts, []
        train: list[str] = []
        heldout: list[str] = []
        if self._by is None:
            for text in texts:
                (heldout if self._is_held_out(text) else train).append(text)
            return train, heldout
        for text, values in zip(texts, fields, strict=True):
            other = values[self._by]
            decides = other if isinstance(other, str) and other else text
            (heldout if self._is_held_out(decides) else train).append(text)
        return train, heldout


class _Side:
    """One side of the split in one piece."""

    def __init__(
        self, staging: Staging, task: int, name: str, job: TokenizeJob, hashed: bool, minhash: MinHasher | None
    ) -> None:
        self._name = name
        self._eod_id = job.tokenizer.eod_id
        kinds = ["bin", "lengths", *([HASHES] if hashed else []), *([FINGERPRINTS] if minhash else [])]
        self.files = [f"{name}.{kind}" for kind in kinds]
        paths = [staging.file(task, file) for file in self.files]
        self.stream = TokenStream(paths[0], paths[1], dtype_for(job.tokenizer.vocab_size))
        makers = [_digest, *([minhash.fingerprint] if minhash else [])]
        self._marks = [(path.open("wb"), maker) for path, maker in zip(paths[2:], makers, strict=False)]

    def add(self, texts: Sequence[str], encoder: Encoder) -> int:
        """Encode and append texts; gives their size in bytes."""
        if not texts:
            return 0
        self.stream.add(*encoder.encode(texts), self._eod_id)
        for stream, maker in self._marks:
            stream.write(b"".join(map(maker, texts)))
        # str.isascii() looks at a flag
        return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)

    def sample(self, texts: Sequence[str]) -> Iterator[dict[str, int | str]]:
        """The first short document of a batch, for the comparison with the reference."""
        for index, text in enumerate(texts):
            if len(text) <= _SAMPLE_CHARACTERS:
                yield {"side": self._name, "index": self.stream.documents + index, "text": text}
                return

    def close(self) -> None:
        self.stream.close()
        for stream, _ in self._marks:
            stream.close()


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()
