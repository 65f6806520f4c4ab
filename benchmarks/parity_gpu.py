"""Every family under Transformer Engine against Hugging Face.

    python benchmarks/parity_gpu.py OUTPUT.json [--jobs N] [FAMILY ...]

Per family: a tiny model with random weights is imported, Megatron builds it as training does and loads the import by
``dist_checkpointing``, and logits and loss are compared with transformers in float32 and bfloat16 on the same device.
A family passes where Megatron's error in bfloat16, against transformers in float32, is at most twice that of
transformers in bfloat16. Without a GPU the local layers are compared: the script can be tried anywhere.

Without FAMILY all fifteen are run. Each takes an import and four processes, most of whose time is the start of their
libraries; N of them (default 1) run at a time and share the device, two threads each. OUTPUT.json is written anew after
each family, in the order asked for.

Megatron's fused rotary kernel for latent attention takes only powers of two for the widths of keys (without their
rotary part) and of values, so those of the tiny models are.

Axes: B  sequences, T  positions of one, N  positions of all, V  vocabulary
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
POSITIONS = 96
SEQUENCES = 16
"""In bfloat16 a token whose next expert scores nearly alike goes elsewhere: few such tokens would decide a mean."""
LIMIT = 2.0
_CHILD_SECONDS = 300
_SIZES: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 3.7e-5,
    "bos_token_id": 1, "eos_token_id": 2, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 7654.0, "factor": 8.0, "original_max_position_embeddings": 32}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 876.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_EXPERTS = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 112}
_LATENT = {
    "num_key_value_heads": 8, "kv_lora_rank": 72, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 64,
    "moe_intermediate_size": 112, "n_routed_experts": 16, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 48}),
    "llama-scaled": ("Llama", {"head_dim": 32, "rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"head_dim": 48}),
    "mistral-window": ("Mistral", {"head_dim": 48, "sliding_window": 21}),
    "qwen2": ("Qwen2", {"head_dim": 48, "tie_word_embeddings": True}),
    "qwen2-yarn": ("Qwen2", {"head_dim": 48, "rope_parameters": _YARN}),
    "qwen3": ("Qwen3", {"head_dim": 48}),
    "qwen3-window": ("Qwen3", {"head_dim": 48, "use_sliding_window": True, "sliding_window": 21,
                               "max_window_layers": 2}),
    "mixtral": ("Mixtral", {"head_dim": 48, "num_local_experts": 12}),
    "qwen2_moe": ("Qwen2Moe", {"head_dim": 48, **_EXPERTS, "shared_expert_intermediate_size": 160}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 48, **_EXPERTS, "norm_topk_prob": True}),
    "deepseek_v2": ("DeepseekV2", {**_LATENT, "q_lora_rank": 96, "n_shared_experts": 3, "rope_parameters": _YARN | {
        "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "deepseek_v2-lite": ("DeepseekV2", {**_LATENT, "q_lora_rank": None, "n_shared_experts": 3}),
    "deepseek_v3": ("DeepseekV3", {**_LATENT, "q_lora_rank": 96, "n_shared_experts": 3, "n_group": 4, "topk_group": 2,
                                   "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "moonlight": ("DeepseekV3", {**_LATENT, "q_lora_rank": None, "n_shared_experts": 3, "n_group": 1,
                                 "topk_group": 1}),
}  # fmt: skip
_TYPES = {"Qwen2Moe": "qwen2_moe", "Qwen3Moe": "qwen3_moe", "DeepseekV2": "deepseek_v2", "DeepseekV3": "deepseek_v3"}


def config_of(family: str) -> dict[str, Any]:
    """config.json of the tiny model."""
    name, more = FAMILIES[family]
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5432.0}}
    names = {"architectures": [f"{name}ForCausalLM"], "model_type": _TYPES.get(name, name.lower())}
    return {**_SIZES, **rope, **names, **more}


def write_model(family: str, directory: Path) -> None:
    """Random weights under which everything matters: norms away from 1, biases away from 0."""
    from safetensors.numpy import save_file

    from pamp_pipelines.conversion.layout import layout_of

    config = config_of(family)
    random = np.random.default_rng(0)
    tensors = {}
    for tensor, shape in layout_of(config).hf_shapes().items():
        mean, spread = (1.0, 0.3) if "norm" in tensor else (0.0, 0.3 if tensor.endswith("bias") else 0.08)
        tensors[tensor] = random.normal(mean, spread, shape).astype(np.float32)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def tokens_of(config: dict[str, Any]) -> Any:
    """Random ids [B, T]."""
    return np.random.default_rng(7).integers(0, config["vocab_size"], (SEQUENCES, POSITIONS))


def hf_logits_NV(directory: Path, dtype: str, output: Path) -> None:
    """Runs in a process of its own, whose torch Megatron does not touch."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).to(device).eval()
    tokens = torch.from_numpy(tokens_of(json.loads((directory / "config.json").read_text()))).to(device)
    with torch.inference_mode():
        np.save(output, model(tokens, use_cache=False).logits.flatten(0, 1).float().cpu().numpy())


def megatron_logits_NV(directory: Path, dtype: str, output: Path) -> None:
    """Megatron's model as training builds it, with the weights of an import."""
    from pamp_pipelines.training import cpu_adapter, wheel

    cuda = not cpu_adapter.install()
    wheel.skip_compilation()
    import torch
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.training.arguments import parse_args, validate_args

    from pamp_pipelines.conversion.torch_dist import checkpoint_dir
    from pamp_pipelines.training.arguments import megatron_argv
    from pamp_pipelines.training.model import model_config
    from pamp_pipelines.verification.megatron_side import fp32_job

    config = json.loads((directory / "hf_template" / "config.json").read_text())
    short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    work = Path(tempfile.mkdtemp())
    job = fp32_job(config, POSITIONS, work).model_copy(update={"precision": short, "determinism": "fast"})
    rendezvous = f"file://{work / 'rendezvous'}"
    torch.distributed.init_process_group("nccl" if cuda else "gloo", init_method=rendezvous, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    sys.argv = ["parity", *megatron_argv(job, cuda=cuda)]
    args = parse_args()
    validate_args(args)
    built = model_config(args, job)
    built.finalize()
    model = built.get_builder_cls()(built).build_model(ProcessGroupCollection.use_mpu_process_groups()).eval()
    device = "cuda" if cuda else "cpu"
    model.to(device)
    metadata = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    root = checkpoint_dir(directory)
    state, _unused, lacking = dist_checkpointing.load(
        model.sharded_state_dict(metadata=metadata), str(root), strict="return_all"
    )
    model.load_state_dict({key: value for key, value in state.items() if key in model.state_dict()})
    tokens = torch.from_numpy(tokens_of(config)).to(device)
    positions = torch.arange(POSITIONS, device=device).expand(SEQUENCES, -1)
    with torch.inference_mode():
        logits = model(tokens, positions, None)[..., : config["vocab_size"]]
    np.save(output, logits.flatten(0, 1).float().cpu().numpy())
    output.with_suffix(".json").write_text(json.dumps({"lacking": sorted(map(str, lacking))}))


def compare(reference_NV: Any, other_NV: Any, tokens_BT: Any) -> dict[str, float]:
    """Differences of logits, share of equal best tokens, largest KL divergence in nats, mean loss of the sequences."""

    def log_softmax(values: Any) -> Any:
        shifted = values.astype(np.float64) - values.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

    p, q = log_softmax(reference_NV), log_softmax(other_NV)
    rows = np.arange(tokens_BT.size).reshape(tokens_BT.shape)[:, :-1].ravel()
    labels = tokens_BT[:, 1:].ravel()
    losses = [-float(x[rows, labels].mean()) for x in (p, q)]
    return {
        "max_abs": float(np.abs(reference_NV - other_NV).max()),
        "mean_abs": float(np.abs(reference_NV - other_NV).mean()),
        "top1": float((reference_NV.argmax(-1) == other_NV.argmax(-1)).mean()),
        "max_kl": float((np.exp(p) * (p - q)).sum(-1).max()),
        "loss": losses[1],
        "loss_error": abs(losses[1] - losses[0]),
    }


def _child(side: str, directory: Path, dtype: str, output: Path, slots: BoundedSemaphore) -> Any:
    # TF32 would round the products of float32 to 10 bits
    env = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0", "HF_HUB_OFFLINE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    env["OMP_NUM_THREADS"] = "2"  # several run beside each other
    command = [sys.executable, __file__, "--child", side, str(directory), dtype, str(output)]
    with slots:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_CHILD_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{side} {dtype}: {(done.stderr or done.stdout)[-3000:]}")
    return np.load(output)


def measure(family: str, folder: Path, slots: BoundedSemaphore) -> dict[str, Any]:
    """All four computations of one family, and what they say. Each holds one of the slots while it runs."""
    from pamp_pipelines.conversion.importer import import_hf
    from pamp_pipelines.conversion.job import plain_import_job

    source, artifact = folder / family, folder / f"{family}-megatron"
    with slots:
        write_model(family, source)
        import_hf(plain_import_job(source, artifact, workers=1))
    config = json.loads((source / "config.json").read_text())
    with ThreadPoolExecutor(4) as threads:
        running = {
            (side, dtype): threads.submit(
                _child, side, directory, dtype, folder / f"{family}-{side}-{dtype}.npy", slots
            )
            for side, directory in (("hf", source), ("megatron", artifact))
            for dtype in ("float32", "bfloat16")
        }
    logits = {which: done.result() for which, done in running.items()}
    exact, tokens = logits["hf", "float32"], tokens_of(config)
    found: dict[str, Any] = {f"{side}-{dtype}": compare(exact, v, tokens) for (side, dtype), v in logits.items()}
    ours, theirs = found["megatron-bfloat16"], found["hf-bfloat16"]
    lacking = json.loads((folder / f"{family}-megatron-bfloat16.json").read_text())["lacking"]
    found["asked_for_and_absent"] = lacking
    found["ratio_mean_abs"] = ours["mean_abs"] / theirs["mean_abs"]
    found["ratio_max_abs"] = ours["max_abs"] / theirs["max_abs"]
    # a loss may agree by chance: its error is judged against the mean error of the logits too
    loss_fits = ours["loss_error"] <= LIMIT * max(theirs["loss_error"], theirs["mean_abs"])
    found["passed"] = found["ratio_mean_abs"] <= LIMIT and loss_fits and not lacking
    return found


def _measured(family: str, folder: Path, slots: BoundedSemaphore) -> dict[str, Any]:
    """What `measure` says; a family that fails leaves its error, the others still count."""
    try:
        return measure(family, folder, slots)
    except Exception:
        return {"passed": False, "error": traceback.format_exc()[-4000:]}


def main() -> None:
    import torch

    from pamp_pipelines.lake.producer import library_versions

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    given = parser.parse_intermixed_args()
    families = given.families or list(FAMILIES)
    if unknown := [family for family in families if family not in FAMILIES]:
        parser.error(f"{', '.join(unknown)}: unknown; there are {', '.join(FAMILIES)}")
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    report: dict[str, Any] = {"device": device, "libraries": library_versions(), "families": {}}
    found: dict[str, Any] = {}
    started = time.monotonic()
    slots = BoundedSemaphore(given.jobs)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as threads:
        running = {threads.submit(_measured, family, Path(folder), slots): family for family in families}
        for done in as_completed(running):
            family = running[done]
            found[family] = done.result()
            print(family, json.dumps(found[family]), flush=True)
            report["families"] = {family: found[family] for family in families if family in found}
            report["seconds"] = round(time.monotonic() - started, 1)
            given.output.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if all(result["passed"] for result in found.values()) else 1)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:2] == ["--child"]:
        _, _, side, directory, dtype, output = sys.argv
        run = {"hf": hf_logits_NV, "megatron": megatron_logits_NV}[side]
        run(Path(directory), dtype, Path(output))
    else:
        main()
