"""Tiny models of every family, written by transformers, in which no two dimensions are equal.

Shape legend: L layers 3, H hidden 48, F ffn 92, V vocab 251, D head 20, Q queries 120, K keys 40.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pamp_pipelines.conversion.job import ExportJob, ImportJob
from pamp_pipelines.lake.events import EventLog

LAYERS, HIDDEN, FFN, VOCAB, HEADS, GROUPS, HEAD = 3, 48, 92, 251, 6, 2, 20
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
Build = Callable[..., Path]


def tiny_config(family: str, *, tied: bool = False, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model, as transformers 5 writes it."""
    classes = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    return {
        "architectures": [f"{classes[family]}ForCausalLM"],
        "model_type": family,
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "vocab_size": VOCAB,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 3e-5,
        "initializer_range": 0.05,
        "rope_parameters": {"rope_type": "default", "rope_theta": 54321.0},
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


@pytest.fixture(scope="session")
def config_of() -> Callable[..., dict[str, Any]]:
    return tiny_config


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Makes, once for each set of arguments, the Hugging Face directory of a tiny model with random weights.

    Norms and biases are random too: transformers initialises them to 1 and 0, which would hide that one was mixed up.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    made: dict[tuple[Any, ...], Path] = {}

    def build_once(family: str, tied: bool = False, dtype: str = "bfloat16", shard_size: str = "5GB") -> Path:
        key = (family, tied, dtype, shard_size)
        if key not in made:
            directory = tmp_path_factory.mktemp(f"{family}-{'tied' if tied else 'untied'}-{dtype}")
            config = tiny_config(family, tied=tied)
            (directory / "config.json").write_text(json.dumps(config))
            torch.manual_seed(len(made) + 1)
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.normal_(1.0 if "norm" in name else 0.0, 0.1)
            model.to(getattr(torch, dtype)).save_pretrained(directory, max_shard_size=shard_size)
            made[key] = directory
        return made[key]

    return build_once


@pytest.fixture(scope="session")
def weights() -> Callable[[Path], dict[str, torch.Tensor]]:
    """All tensors of a Hugging Face directory, read by the safetensors library."""
    from safetensors.torch import load_file

    def read(directory: Path) -> dict[str, torch.Tensor]:
        return {n: t for file in sorted(directory.glob("*.safetensors")) for n, t in load_file(file).items()}

    return read


def megatron_weights(hf: dict[str, torch.Tensor], family: str, tied: bool) -> dict[str, torch.Tensor]:
    """What Megatron's checkpoint must hold, written down independently of the tables under test."""

    def layers(name: str) -> list[torch.Tensor]:
        return [hf[f"model.layers.{i}.{name}"] for i in range(LAYERS)]

    def fused(kind: str) -> torch.Tensor:
        stacked = []
        for i in range(LAYERS):
            q, k, v = (hf[f"model.layers.{i}.self_attn.{x}_proj.{kind}"] for x in "qkv")
            rest = q.shape[1:]
            q = q.view(GROUPS, HEADS // GROUPS, HEAD, *rest)
            k, v = (x.view(GROUPS, 1, HEAD, *rest) for x in (k, v))
            stacked.append(torch.cat([q, k, v], dim=1).reshape(-1, *rest))
        return torch.stack(stacked)

    gate_up = [
        torch.cat(pair) for pair in zip(layers("mlp.gate_proj.weight"), layers("mlp.up_proj.weight"), strict=True)
    ]
    prefix = "decoder.layers."
    expected = {
        "embedding.word_embeddings.weight": hf["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": hf["model.norm.weight"],
        prefix + "self_attention.linear_qkv.layer_norm_weight": torch.stack(layers("input_layernorm.weight")),
        prefix + "self_attention.linear_qkv.weight": fused("weight"),
        prefix + "self_attention.linear_proj.weight": torch.stack(layers("self_attn.o_proj.weight")),
        prefix + "mlp.linear_fc1.layer_norm_weight": torch.stack(layers("post_attention_layernorm.weight")),
        prefix + "mlp.linear_fc1.weight": torch.stack(gate_up),
        prefix + "mlp.linear_fc2.weight": torch.stack(layers("mlp.down_proj.weight")),
    }
    if family == "qwen2":
        expected[prefix + "self_attention.linear_qkv.bias"] = fused("bias")
    if family == "qwen3":
        for x in "qk":
            key = f"{prefix}self_attention.{x}_layernorm.weight"
            expected[key] = torch.stack(layers(f"self_attn.{x}_norm.weight"))
    if not tied:
        expected["output_layer.weight"] = hf["lm_head.weight"]
    return expected


@pytest.fixture(scope="session")
def reference() -> Callable[..., dict[str, torch.Tensor]]:
    return megatron_weights


@pytest.fixture(scope="session")
def load_checkpoint() -> Callable[[Path], dict[str, torch.Tensor]]:
    """All tensors of a torch_dist directory, read by torch's own distributed checkpointing."""
    import torch.distributed.checkpoint as dcp

    def load(directory: Path) -> dict[str, torch.Tensor]:
        reader = dcp.FileSystemReader(directory)
        described = reader.read_metadata().state_dict_metadata
        state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in described.items() if hasattr(m, "size")}
        dcp.load(state, storage_reader=reader, no_dist=True)
        return state

    return load


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs workers inside the test's own process: what is tested is the conversion, and a start costs a second."""
    from pamp_pipelines.conversion import stage, worker
    from pamp_pipelines.errors import WorkerFailed
    from pamp_pipelines.lake.events import read_events

    def run(module: str, job: Path, run_dir: Path, *, on_event: Any, **_: Any) -> None:
        assert module == stage.WORKER
        code = worker.main(job)
        events, _offset = read_events(run_dir / "events.jsonl")
        for item in events:
            on_event(item)
        if code:
            raise WorkerFailed(str(events[-1].data["message"]), code)

    monkeypatch.setattr(stage, "run_worker", run)


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Path]:
    """Imports a Hugging Face directory by the worker's own function; returns the directory with `hf_template/`."""
    from pamp_pipelines.conversion.import_work import run_import

    def run(source: Path, **options: Any) -> Path:
        target = tmp_path / f"imported-{len(list(tmp_path.iterdir()))}"
        target.mkdir()
        job = ImportJob(name="test", id="test", output=target, source=source, **options)
        run_import(job, target, EventLog(tmp_path / "events.jsonl"))
        return target

    return run


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., Path]:
    """Exports a checkpoint by the worker's own function; returns the Hugging Face directory."""
    from pamp_pipelines.conversion.export_work import run_export

    def run(checkpoint: Path, template: Path, **options: Any) -> Path:
        target = tmp_path / f"exported-{len(list(tmp_path.iterdir()))}"
        target.mkdir()
        job = ExportJob(name="test", id="test", output=target, checkpoint=checkpoint, template=template, **options)
        run_export(job, target, EventLog(tmp_path / "events.jsonl"))
        return target

    return run
