"""An evaluation: which lm-eval tasks score a checkpoint, and how."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator

from pamp_pipelines.declarations.base import Declaration, Inconsistent, Owner, Place
from pamp_pipelines.urls import credentials_problem


class Evaluation(Declaration):
    """One file in ``assets/evaluations``; its stem names the asset ``eval_scores/<stem>``."""

    description: str = ""
    """What it measures. Not part of the data version."""
    owners: tuple[Owner, ...] = ()
    """Who answers for it: e-mail addresses or ``team:name``. Not part of the data version."""
    tasks: Annotated[tuple[Place, ...], Field(min_length=1)]
    """lm-eval task names, names of tasks shipped with this package, or paths of task YAML files in the project."""
    data: dict[str, Place] = {}
    """Rows of a task: task name to a JSONL file of the project, to ``package:NAME/path`` for a file in an installed
    package, to ``hub:owner/name[:config][@revision]``, to ``held_out`` for the held-out documents of the corpora that
    the checkpoint was trained on, or to ``held_out:CORPUS`` for those of a declared corpus, trained on or not."""
    datasets: Place | None = None
    """Folder of data sets by their names on the hub, ``owner/name/config/split.jsonl``, where tasks without ``data``
    are looked up before the hub's cache."""
    num_fewshot: Annotated[int | None, Field(ge=0)] = None
    """Examples shown before each question; default: the task's own."""
    limit: PositiveInt | None = None
    """Score only the first rows of each task; shown beside each score that it cuts."""
    batch_size: PositiveInt | Literal["auto"] = 1
    """Requests in one forward pass; ``auto``: as many as fit on a GPU, on a CPU four."""
    processes: PositiveInt = 1
    """Copies of the model, on a GPU (or share of the CPU) of their own, that the requests are dealt to."""
    backend: Literal["hf", "vllm", "local-completions"] = "hf"
    """What runs the model: transformers, vLLM where it is installed, or a server of OpenAI-like completions."""
    backend_arguments: dict[str, Any] = {}
    """Arguments of the backend as lm-eval has them, e.g. ``{base_url: http://127.0.0.1:8000/v1/completions}``."""
    max_length: PositiveInt | None = None
    """Context in tokens; default: the model's."""
    generation: dict[str, Any] = {}
    """Generation arguments over the task's own, e.g. ``{max_gen_toks: 256}``."""
    apply_chat_template: bool = False
    """Wrap prompts in the tokenizer's chat template."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Arithmetic of the forward pass; ``auto`` takes the export's."""
    bootstrap_iterations: Annotated[int, Field(ge=0)] = 0
    """Resamples for standard errors that have no closed form; 0 leaves those out."""
    allow_code: bool = False
    """Let a task YAML from outside the project call Python (``!function``). Read its code first: it runs as you. Not
    part of the data version."""
    worse_factor: Annotated[float, Field(ge=1)] = 1.1
    """A perplexity above that of the checkpoint before by more than this factor is a warning. Not part of the data
    version."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1234
    """Seed of few-shot sampling and generation."""

    @field_validator("backend_arguments")
    @classmethod
    def _without_credentials(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        found = {name: credentials_problem(value) for name, value in arguments.items() if isinstance(value, str)}
        if problems := [(name, problem) for name, problem in found.items() if problem is not None]:
            raise Inconsistent(*problems)
        return arguments
