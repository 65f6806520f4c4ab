"""What planning the import of DeepSeek-V3 (671 B parameters, fp8) costs: ``python benchmarks/conversion_plan.py``.

The model directory holds the real config and all headers; the weights are holes in sparse files, so nothing of its
689 GB is stored. Prints one JSON object: seconds and peak resident memory of the planning process, and the plan.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
    "moe_layer_freq": 1, "first_k_dense_replace": 3, "norm_topk_prob": True, "scoring_func": "sigmoid",
    "hidden_act": "silu", "max_position_embeddings": 163840, "initializer_range": 0.02, "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False, "rope_theta": 10000, "attention_bias": False,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
}  # fmt: skip
NARROW: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 512, "moe_intermediate_size": 64, "num_attention_heads": 8,
    "num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}  # fmt: skip
"""Sizes under which the whole of it is small, but for the number of its tensors."""
_SHARD_BYTES = 4_300_000_000
_SIZES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
_PLAIN = ("norm", "gate.weight", "embed_tokens", "lm_head", "shared_head.head", "eh_proj")
"""Weights that the release keeps in bfloat16."""

_MEASURE = """
import json, sys, time
from pathlib import Path
started = time.perf_counter()
from pamp_pipelines.conversion.importer import describe_plan
from pamp_pipelines.conversion.job import ImportJob
job = ImportJob(name="plan", id="plan", output=Path("unused"), source=Path(sys.argv[1]))
plan = describe_plan(job)
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps({"seconds": round(time.perf_counter() - started, 2), "cpu_seconds": round(time.process_time(), 2),
                  "peak_resident_mb": peak // 1024, **plan}))
"""


def tensors(config: dict[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(name, type, shape) of every tensor of the release."""
    from pamp_pipelines.conversion.layout import layout_of

    layout = layout_of(config)
    shapes = layout.hf_shapes()
    shapes |= {copy: shapes[original] for copy, original in layout.copies().items()}
    rows, columns = config["quantization_config"]["weight_block_size"]
    for name, shape in shapes.items():
        if "e_score_correction_bias" in name:
            yield name, "F32", shape
        elif len(shape) == 1 or any(part in name for part in _PLAIN):
            yield name, "BF16", shape
        else:
            yield name, "F8_E4M3", shape
            yield f"{name}_scale_inv", "F32", (math.ceil(shape[0] / rows), math.ceil(shape[1] / columns))


def write_headers(directory: Path, config: dict[str, Any], shard_bytes: int = _SHARD_BYTES) -> tuple[int, int]:
    """A model directory whose weights are holes; returns the number of tensors and their bytes."""
    (directory / "config.json").write_text(json.dumps(config))
    shards: list[dict[str, Any]] = [{}]
    size = total = count = 0
    for name, dtype, shape in tensors(config):
        length = math.prod(shape) * _SIZES[dtype]
        if shards[-1] and size + length > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [size, size + length]}
        size, total, count = size + length, total + length, count + 1
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = directory / f"model-{number:05d}-of-{len(shards):06d}.safetensors"
        header = json.dumps(shard).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        end = max(entry["data_offsets"][1] for entry in shard.values())
        os.truncate(file, 8 + len(header) + end)
        weight_map |= dict.fromkeys(shard, file.name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return count, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--experts", type=int, default=CONFIG["n_routed_experts"])
    parser.add_argument("--directory", type=Path, help="where the sparse files go; default: a temporary directory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        config = {**CONFIG, "num_hidden_layers": args.layers, "n_routed_experts": args.experts}
        started = time.perf_counter()
        count, total = write_headers(Path(folder), config)
        wrote = time.perf_counter() - started
        done = subprocess.run([sys.executable, "-c", _MEASURE, folder], check=True, capture_output=True, text=True)
        found = {"layers": args.layers, "experts": args.experts, "hf_tensors": count, "hf_bytes": total}
        print(json.dumps({**found, "writing_headers_s": round(wrote, 1), **json.loads(done.stdout)}, indent=1))


if __name__ == "__main__":
    main()
