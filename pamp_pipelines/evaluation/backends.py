"""What answers requests: transformers here and in further processes, vLLM, a server. Imported by the worker alone."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.helpers import Helpers, Loading
from pamp_pipelines.evaluation.model import Progress, TokenPolicy, load_model, token_policy
from pamp_pipelines.evaluation.spec import EvaluateJob, EvaluationSpec


@dataclass
class Loaded:
    """A model that answers, and the processes that help it."""

    model: Any
    helpers: Helpers | None = None

    def close(self) -> None:
        if self.helpers is not None:
            self.helpers.close()


def load_for(job: EvaluateJob, spec: EvaluationSpec, progress: Progress) -> Loaded:
    """The model as an evaluation asks for it.

    Raises:
        InputError: it cannot be loaded, or the backend is not installed or lacks an argument.
    """
    subject = job.subject
    if spec.backend != "hf":
        return Loaded(_other_backend(job, spec, progress))
    import torch

    threads = max(1, torch.get_num_threads() // spec.processes)
    if spec.processes > 1:
        torch.set_num_threads(threads)
    devices = _devices(job.device, spec.processes, torch.cuda.device_count())
    model = load_model(subject.directory, subject.prefix, spec.dtype, devices[0], progress)
    model.keep_answers(job.answers, subject.content)
    helpers = None
    if spec.processes > 1:
        helpers = Helpers(
            [
                Loading(subject.directory, subject.prefix, spec.dtype, device, threads, job.answers, subject.content)
                for device in devices[1:]
            ]
        )
        model.share_by(helpers.answer)
    return Loaded(model, helpers)


def _devices(device: str, processes: int, gpus: int) -> list[str]:
    """A device for each process: GPUs one by one, or the CPU for all."""
    if device == "cpu" or (device == "auto" and not gpus):
        return ["cpu"] * processes
    if processes > gpus:
        raise InputError(f"{processes} scoring processes need a GPU each, and there are {gpus}; lower `processes`.")
    return [f"cuda:{number}" for number in range(processes)]


def _other_backend(job: EvaluateJob, spec: EvaluationSpec, progress: Progress) -> Any:
    from transformers import AutoTokenizer

    directory = job.subject.directory
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    config = json.loads((directory / "config.json").read_text())
    policy = token_policy(tokenizer, job.subject.prefix, int(config["vocab_size"]))
    arguments = dict(spec.backend_arguments)
    if spec.backend == "local-completions" and "base_url" not in arguments:
        raise InputError(f"evaluation {spec.name!r}: backend_arguments needs `base_url`, the address of completions.")
    try:
        make = _completions if spec.backend == "local-completions" else _vllm
        model = make(directory, policy, arguments, spec)
    except (ModuleNotFoundError, ImportError) as error:
        raise InputError(f"evaluation {spec.name!r}: backend {spec.backend} is not installed: {error}") from error
    model.policy = policy
    model.reference_tokenizer = tokenizer
    return model


def _completions(directory: Path, policy: TokenPolicy, arguments: dict[str, Any], spec: EvaluationSpec) -> Any:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    # lm-eval answers for itself where no key is asked for; a server of one's own has none.
    os.environ.setdefault("OPENAI_API_KEY", "none")
    length = spec.max_length or arguments.pop("max_length", None) or 2048
    return _fitted(LocalCompletionsAPI, "server")(
        **{"model": directory.name, "tokenizer": str(directory), "tokenizer_backend": "huggingface"} | arguments,
        custom_prefix_token_id=policy.prefix_id,
        batch_size=spec.batch_size,
        max_length=length + 2,  # it keeps one for a token to generate and one for the prefix
        seed=spec.seed,
    )


def _vllm(directory: Path, policy: TokenPolicy, arguments: dict[str, Any], spec: EvaluationSpec) -> Any:
    from lm_eval.models.vllm_causallms import VLLM

    return _fitted(VLLM, "cuda")(
        pretrained=str(directory),
        dtype=spec.dtype,
        prefix_token_id=policy.prefix_id,
        batch_size=spec.batch_size,
        max_length=spec.max_length,
        data_parallel_size=spec.processes,
        seed=spec.seed,
        **arguments,
    )


def _fitted(backend: type, device: str) -> Any:
    """A backend of lm-eval with what the harness asks of a model."""

    class Fitted(backend):  # type: ignore[misc, valid-type]
        device_name, dtype_name = device, "as served"
        policy: TokenPolicy
        reference_tokenizer: Any

        def configure(self, batch_size: int | str, max_length: int | None) -> None:
            """All is set when it is made: evaluations with other settings get one of their own."""
            self.batch_used = batch_size if isinstance(batch_size, int) else None

        def document_length(self, text: str) -> int:
            return len(self.document_tokens(text))

        def document_tokens(self, text: str) -> list[int]:
            return list(self.reference_tokenizer.encode(text, add_special_tokens=False))

    return Fitted
