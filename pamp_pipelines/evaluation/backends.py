"""What answers requests: transformers here and in further processes, vLLM, a server. Imported by the worker alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pamp_pipelines.errors import InputError, install_command
from pamp_pipelines.evaluation.answering import Answering, Progress, TokenPolicy
from pamp_pipelines.evaluation.helpers import Helpers, Loading
from pamp_pipelines.evaluation.model import load_model, token_policy
from pamp_pipelines.evaluation.spec import EvaluateJob, EvaluationSpec
from pamp_pipelines.lake.hashing import sha256_json

_PACKAGES = {"vllm": "vllm ray", "local-completions": "'lm-eval[api]'"}
"""What a backend needs besides this package."""


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
    setting = _setting(job, spec)
    model.keep_answers(job.answers, setting)
    helpers = None
    if spec.processes > 1:
        helpers = Helpers(
            [
                Loading(subject.directory, subject.prefix, spec.dtype, device, threads, job.answers, setting)
                for device in devices[1:]
            ]
        )
        model.share_by(helpers.answer)
    return Loaded(model, helpers)


def _setting(job: EvaluateJob, spec: EvaluationSpec) -> str:
    """What tells kept answers of one model from those of another: a server is another model by its address alone."""
    return sha256_json([job.subject.content, spec.backend, spec.backend_arguments])


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
    try:
        if spec.backend == "local-completions":
            from pamp_pipelines.evaluation.served import served_model

            model = served_model(directory, tokenizer, policy, spec)
        else:
            model = _vllm(directory, policy, config, spec)
    except (ModuleNotFoundError, ImportError) as error:
        install = install_command(_PACKAGES[spec.backend])
        raise InputError(
            f"evaluation {spec.name!r}: backend {spec.backend} is not installed: {error}. Run `{install}`, or leave "
            "`backend` out."
        ) from error
    model.begin(policy, progress)
    model.keep_answers(job.answers, _setting(job, spec))
    return model


def _vllm(directory: Path, policy: TokenPolicy, config: dict[str, Any], spec: EvaluationSpec) -> Any:
    """lm-eval's vLLM backend, which keeps two tokens of the context for itself where documents are scored."""
    from lm_eval.models.utils import has_bos_prefix
    from lm_eval.models.vllm_causallms import VLLM

    class OnVLLM(Answering, VLLM):  # type: ignore[misc, valid-type]
        device_name, dtype_name = "cuda", spec.dtype
        batch_used = spec.batch_size if isinstance(spec.batch_size, int) else None

        def configure(self, batch_size: int | str, max_length: int | None) -> None:
            """All is set when it is made: evaluations with other settings get one of their own."""

        def tok_encode(self, string: Any, add_special_tokens: bool | None = None, **more: Any) -> Any:
            """As lm-eval's, but no second BOS before a prompt that has one."""
            if isinstance(string, list) and add_special_tokens is None:
                return [self.tok_encode(text, **more) for text in string]
            if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.bos_token):
                add_special_tokens = False
            return super().tok_encode(string, add_special_tokens=add_special_tokens, **more)

    limit = int(config.get("max_position_embeddings") or spec.max_length or 0)
    return OnVLLM(
        pretrained=str(directory),
        dtype=spec.dtype,
        prefix_token_id=policy.prefix_id,
        batch_size=spec.batch_size,
        max_length=spec.max_length and min(spec.max_length + 2, max(limit, spec.max_length)),
        data_parallel_size=spec.processes,
        seed=spec.seed,
        **spec.backend_arguments,
    )
