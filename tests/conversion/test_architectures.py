"""Tables against transformers' own models, Megatron arguments, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pamp_pipelines.conversion.architectures import (
    ARCHITECTURES,
    Window,
    architecture_of,
    megatron_arguments,
    unsupported,
    window_of,
)
from pamp_pipelines.conversion.layout import layout_of
from pamp_pipelines.errors import InputError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_table_has_the_tensors_of_transformers(family: str, tied: bool, config_of: Any, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = config_of(family, tied=tied)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    layout = layout_of(config)
    assert layout.hf_shapes() == {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert layout.parameters() == model.num_parameters()


def test_megatron_arguments_of_llama(config_of: Any) -> None:
    assert megatron_arguments(config_of("llama")) == {
        "num_layers": 3,
        "hidden_size": 48,
        "ffn_hidden_size": 92,
        "num_attention_heads": 6,
        "group_query_attention": True,
        "num_query_groups": 2,
        "kv_channels": 20,
        "vocab_size": 251,
        "max_position_embeddings": 512,
        "normalization": "RMSNorm",
        "layernorm_epsilon": 3e-5,
        "swiglu": True,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        "untie_embeddings_and_output_weights": True,
        "init_method_std": 0.05,
        "position_embedding_type": "rope",
        "rotary_base": 54321,
        "rotary_percent": 1.0,
        "use_rope_scaling": False,
    }


def test_arguments_that_tell_the_families_apart(config_of: Any) -> None:
    assert megatron_arguments(config_of("qwen2"))["add_qkv_bias"] is True
    assert megatron_arguments(config_of("qwen2"))["qk_layernorm"] is False
    assert megatron_arguments(config_of("qwen3"))["qk_layernorm"] is True
    assert megatron_arguments(config_of("qwen3"))["add_qkv_bias"] is False
    assert megatron_arguments(config_of("llama", tied=True))["untie_embeddings_and_output_weights"] is False


@pytest.mark.parametrize("family", FAMILIES)
def test_every_argument_is_one_of_megatrons(family: str, config_of: Any) -> None:
    from pamp_pipelines.declarations.megatron_flags import megatron_flags

    known = {flag.dest for flag in megatron_flags().values()}
    scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = config_of(family, rope_parameters=scaled, original_max_position_embeddings=8192)
    assert megatron_arguments(config).keys() <= known


@pytest.mark.parametrize(
    ("missing", "family", "expected"),
    [
        # what the HF class means where config.json omits the field
        ("head_dim", "llama", {"kv_channels": 8}),
        ("head_dim", "qwen3", {"kv_channels": 128}),
        ("num_key_value_heads", "llama", {"num_query_groups": 6}),
        ("rms_norm_eps", "llama", {"layernorm_epsilon": 1e-6}),
        ("rope_parameters", "llama", {"rotary_base": 10000}),
    ],
)
def test_defaults_are_those_of_the_hf_class(
    missing: str, family: str, expected: dict[str, Any], config_of: Any
) -> None:
    config = config_of(family)
    del config[missing]
    assert expected.items() <= megatron_arguments(config).items()


def test_rotary_base_of_both_spellings(config_of: Any) -> None:
    old = config_of("llama", rope_theta=500000.0)
    del old["rope_parameters"]
    base = megatron_arguments(old)["rotary_base"]
    assert base == 500000
    assert isinstance(base, int)
    assert megatron_arguments(old | {"rope_scaling": None})["rotary_base"] == 500000


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("changed", [{}, {"factor": 32.0}, {"original_max_position_embeddings": 4096}])
def test_llama3_scaling_is_trained_with_its_own_constants(changed: dict[str, Any], config_of: Any) -> None:
    config = config_of("llama", rope_parameters=LLAMA3 | changed)
    assert unsupported(config) == []
    assert megatron_arguments(config)["use_rope_scaling"] is True
    assert megatron_arguments(config)["rope_scaling_factor"] == (LLAMA3 | changed)["factor"]


def test_a_fractional_rotary_base_is_kept(config_of: Any) -> None:
    config = config_of("llama", rope_parameters={"rope_type": "default", "rope_theta": 10000.5})
    assert unsupported(config) == []
    assert megatron_arguments(config)["rotary_base"] == 10000.5


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"rope_parameters": LLAMA3 | {"low_freq_factor": None}}, "low_freq_factor is None"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type 'dynamic'"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "factor is None"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "original_max_position_embeddings is None"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama", {"attention_bias": True}, "attention_bias is true"),
        ("llama", {"mlp_bias": True}, "mlp_bias is true"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": "100"}, "sliding_window is '100'"),
        ("llama", {"layer_types": ["sliding_attention"] * 3}, "runs every layer with full attention"),
        (
            "mistral",
            {"sliding_window": 9, "layer_types": ["full_attention"] * 3},
            "every layer with its sliding_window",
        ),
        ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "layer_types holds chunked_attention"),
        ("qwen3", {"attention_bias": True}, "attention_bias is true"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types names 2 layers"),
        ("qwen3", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "there is no window"),
    ],
)
def test_refusals(family: str, changes: dict[str, Any], words: str, config_of: Any) -> None:
    assert unsupported(config_of(family)) == []
    (problem,) = unsupported(config_of(family, **changes))
    assert words in problem


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 512}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 100}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 100}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 100, "layer_types": ["full_attention"] * 3}),
    ],
)
def test_a_window_that_nothing_reaches_is_no_window(family: str, changes: dict[str, Any], config_of: Any) -> None:
    """As long as the context, switched off, or above the last layer: `max_window_layers` is 28 where it is absent."""
    config = config_of(family, **changes)
    assert unsupported(config) == []
    assert window_of(config) is None
    assert "window_size" not in megatron_arguments(config)


def test_a_window_counts_the_token_itself_and_megatrons_does_not(config_of: Any) -> None:
    everywhere = config_of("mistral", sliding_window=128)
    assert unsupported(everywhere) == []
    assert megatron_arguments(everywhere)["window_size"] == "127,0"
    assert "window_attn_skip_freq" not in megatron_arguments(everywhere)
    upper = config_of("qwen2", use_sliding_window=True, sliding_window=1, max_window_layers=1)
    assert unsupported(upper) == []
    assert megatron_arguments(upper)["window_size"] == "0,0"
    assert megatron_arguments(upper)["window_attn_skip_freq"] == "[0,1,1]"


@pytest.mark.parametrize("model_type", ["qwen2", "qwen2_moe", "qwen3"])
@pytest.mark.parametrize("bound", [None, 0, 1, 4, 9])
def test_layers_with_a_window_are_those_of_transformers(model_type: str, bound: int | None, config_of: Any) -> None:
    from transformers import AutoConfig

    named = {} if bound is None else {"max_window_layers": bound}
    fields = {"num_hidden_layers": 7, "use_sliding_window": True, "sliding_window": 9, **named}
    kinds = AutoConfig.for_model(model_type, **fields).layer_types
    config = {"model_type": model_type, "max_position_embeddings": 64, **fields}
    theirs = tuple(kind == "sliding_attention" for kind in kinds)
    assert window_of(config) == (Window(9, theirs) if any(theirs) else None)
    # written out, as transformers saves it
    assert window_of({**config, "layer_types": kinds}) == window_of(config)


def test_unknown_architecture_names_those_that_are_known() -> None:
    with pytest.raises(InputError, match="GPT2LMHeadModel") as caught:
        architecture_of({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})
    for architecture in ARCHITECTURES:
        assert architecture.classes[0] in str(caught.value)
    assert architecture_of({"model_type": "qwen3"}).name == "qwen3"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"hidden_size": "48"}, "hidden_size is '48'"),
        ({"num_key_value_heads": 4}, "no multiple of num_key_value_heads 4"),
        ({"head_dim": None, "num_attention_heads": 5, "num_key_value_heads": 5}, "set head_dim"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_theta is -1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; at most 10,000"),
        ({"architectures": 5}, "architectures is 5; expected a list"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'; expected a list"),
        ({"architectures": [["LlamaForCausalLM"]]}, "expected a list"),
    ],
)
def test_impossible_configs(changes: dict[str, Any], words: str, config_of: Any) -> None:
    with pytest.raises(InputError, match=words):
        megatron_arguments(config_of("llama", **changes))
