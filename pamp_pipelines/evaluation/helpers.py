"""Data parallel scoring: further processes, each with a copy of the model, that requests are dealt to.

Imported by the worker alone. The processes are children of the worker, so its supervisor ends them with it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pamp_pipelines.errors import PampError
from pamp_pipelines.evaluation.answering import Own
from pamp_pipelines.evaluation.model import load_model


@dataclass(frozen=True)
class Loading:
    """How a helper loads the model: the arguments of ``load_model``, plain data."""

    directory: Path
    prefix: str | int | None
    dtype: str
    device: str
    threads: int
    answers: Path | None
    setting: str


class Helpers:
    """Processes that answer requests. Start them once; ``close`` ends them."""

    def __init__(self, loadings: Sequence[Loading]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for loading in loadings:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, loading), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def answer(
        self,
        kind: str,
        requests: Sequence[Sequence[Any]],
        configuration: tuple[Any, ...],
        own: Own,
    ) -> list[Any]:
        """Answers in the order of ``requests``: this process's share by ``own``, the others' by the helpers.

        Requests are dealt like cards in the order of their length, so that shares take about equally long.

        Raises:
            PampError: a helper failed; the message is its.
        """
        hands = len(self._pipes) + 1
        order = sorted(range(len(requests)), key=lambda i: -len(str(requests[i])))
        shares = [order[start::hands] for start in range(hands)]
        for pipe, share in zip(self._pipes, shares[1:], strict=True):
            pipe.send((kind, [requests[i] for i in share], configuration))
        answers: list[Any] = [None] * len(requests)
        found = [own([requests[i] for i in shares[0]])]
        for number, pipe in enumerate(self._pipes, 1):
            try:
                result = pipe.recv()
            except EOFError:
                raise PampError(f"scoring process {number} ended without an answer; see the worker's log.") from None
            if isinstance(result, str):
                raise PampError(f"scoring process {number}: {result}")
            found.append(result)
        for share, of_share in zip(shares, found, strict=True):
            for i, answer in zip(share, of_share, strict=True):
                answers[i] = answer
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


def _serve(pipe: Connection, loading: Loading) -> None:
    """Answer until the other end closes."""
    torch.set_num_threads(loading.threads)
    model = None
    while True:
        try:
            kind, requests, configuration = pipe.recv()
        except EOFError:
            return
        try:
            if model is None:
                model = load_model(loading.directory, loading.prefix, loading.dtype, loading.device, lambda *_: None)
                model.keep_answers(loading.answers, loading.setting)
            model.configure(*configuration)
            pipe.send(getattr(model, kind)([SimpleNamespace(args=tuple(args)) for args in requests]))
        except Exception as error:  # the other side raises it
            pipe.send(f"{type(error).__name__}: {error}")
            return
