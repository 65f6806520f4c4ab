"""The verdict on a converted checkpoint: complete, equal bit for bit, and the same model to both libraries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion import tensor_manifest
from pamp_pipelines.conversion.architectures import unsupported
from pamp_pipelines.conversion.job import template_of
from pamp_pipelines.conversion.layout import layout_of
from pamp_pipelines.conversion.tensor_manifest import MANIFEST, TensorDigest, manifest_verdict, write_tensor_manifest
from pamp_pipelines.conversion.torch_dist import checkpoint_dir
from pamp_pipelines.conversion.verify_files import verify_checkpoint_files
from pamp_pipelines.declarations.hf_config import load_hf_config
from pamp_pipelines.lake.events import OnEvent, ignore
from pamp_pipelines.lake.manifest import CheckResult
from pamp_pipelines.verification.compare import LOGITS
from pamp_pipelines.verification.divisions import RELOADED, other_division
from pamp_pipelines.verification.first_layers import first_layers_config
from pamp_pipelines.verification.job import ParityCase
from pamp_pipelines.verification.parity import forward_parity

LAYERS = 2
"""Layers compared by default: each layer is built by the same code, and the bits of all are compared anyway."""


def verify_checkpoint(
    source: Path, checkpoint: Path, *, layers: int | None = LAYERS, record: bool = False, on_event: OnEvent = ignore
) -> list[CheckResult]:
    """Compares a Megatron checkpoint with the Hugging Face model it was made from.

    Verdicts on the files (coverage on both sides, every bit, the hashes that the import recorded), then what Megatron
    builds from the checkpoint's own `hf_template/config.json`, its logits, and what it loads at other parallel sizes. A
    model that Megatron's training loop cannot represent is converted all the same, and its logits are not compared: a
    warning says so.

    Args:
        source: Hugging Face directory.
        checkpoint: a directory with `.metadata`, one with a tracker file, or an import's artifact; `hf_template/` lies
            in or beside it.
        layers: compare the forward pass of the first layers only, and of one with experts at least; None takes the
            whole model.
        record: write the hashes of the tensors beside `hf_template/`: the checkpoint was just made from `source`.
        on_event: progress.

    Raises:
        InputError: there is no checkpoint, template or readable source at all.
        WorkerFailed: the comparison could not be made.
    """
    source, checkpoint = source.absolute(), checkpoint.absolute()
    template = template_of(checkpoint)
    config = load_hf_config(source)
    files = verify_checkpoint_files(source, checkpoint, on_event=on_event)
    static = [*files.checks, _manifest(template.parent / tensor_manifest.FILE, files.tensors, record=record)]
    if refusals := unsupported(load_hf_config(template)):
        expected = bool(unsupported(config))
        return [*static, *(_not_compared(name, refusals, expected=expected) for name in (LOGITS, RELOADED))]
    depth = int(config["num_hidden_layers"])
    wanted = None if layers is None else max(layers, _first_sparse(config) + 1)
    case = ParityCase(
        name=source.name,
        source=source,
        checkpoint=checkpoint_dir(checkpoint),
        template=template,
        layers=wanted if wanted is not None and wanted < depth else None,
        divisions=(other_division(first_layers_config(config, wanted)),),
    )
    return [*static, *forward_parity([case], on_event)[case.name]]


def _first_sparse(config: dict[str, Any]) -> int:
    """The first layer with routed experts where only some have them; 0 where all layers are alike."""
    sparse = layout_of(config).sparse or ()
    return sparse.index(True) if True in sparse else 0


def _manifest(file: Path, found: Mapping[str, TensorDigest], *, record: bool) -> CheckResult:
    """The check `tensor_manifest`: the tensors have the hashes that the import recorded."""
    if record:
        write_tensor_manifest(file, found)
        description = f"recorded the SHA-256 of {len(found)} tensors in {file.name}"
        return CheckResult(name=MANIFEST, passed=True, description=description, metadata={"tensors": len(found)})
    if not file.is_file():
        description = f"There is no {file.name} beside hf_template/: nothing was recorded to compare with."
        return CheckResult(name=MANIFEST, passed=False, severity="WARN", description=description)
    return manifest_verdict(file, found)


def _not_compared(name: str, refusals: list[str], *, expected: bool) -> CheckResult:
    """Megatron cannot build what the template says: a warning where the source says the same, else an error."""
    return CheckResult(
        name=name,
        passed=False,
        severity="WARN" if expected else "ERROR",
        description="Not compared, since Megatron's training loop cannot build this model: " + "; ".join(refusals),
        metadata={"compared": False},
    )
