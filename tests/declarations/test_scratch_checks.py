"""A wrong from_scratch config is found before anything runs, at its line, with the name that was meant."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from pamp_pipelines.conversion.architectures import ARCHITECTURES, Architecture
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.declarations.cross_checks import cross_check
from pamp_pipelines.declarations.hf_fields import CLASSES, known_fields
from pamp_pipelines.project import Project

Edit = Callable[[str, str, str], None]
TINY = "assets/models/tiny.yaml"


def findings(project: Project) -> tuple[list[str], list[str]]:
    report = cross_check(load_catalog(project))
    errors, warnings = (
        [f"{p.file.name}:{p.line}: {p.field}: {p.message}" for p in found] for found in (report.errors, report.warnings)
    )
    return errors, warnings


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "hidden_size: 64",
            "hiden_size: 64",
            "tiny.yaml:6: from_scratch.config.hiden_size: unknown field…'hidden_size'",
        ),
        ("hidden_size: 64", "hiden_size: 64", "tiny.yaml:3: from_scratch.config: hidden_size is missing"),
        ("heads: 4", "heads: four", "tiny.yaml:8: from_scratch.config.num_attention_heads: 'four' is not a positive"),
        ("layers: 2", "layers: 0", "tiny.yaml:9: from_scratch.config.num_hidden_layers: 0 is not a positive"),
        ("layers: 2", "layers: true", "num_hidden_layers: True is not a positive"),
        ("layers: 2", "layers: 2.0", "num_hidden_layers: 2.0 is not a positive"),
        (
            "heads: 4",
            "heads: 3\n    num_key_value_heads: 2",
            "num_key_value_heads: 2 does not divide num_attention_heads 3",
        ),
        (
            "heads: 4",
            "heads: 4\n    num_key_value_heads: 3",
            "num_key_value_heads: 3 does not divide num_attention_heads 4",
        ),
        ("heads: 4", "heads: 3", "num_attention_heads: 3 does not divide hidden_size 64"),
        ("heads: 4", "heads: 4\n    head_dim: 15", "head_dim: heads are 15 wide"),
        ("layers: 2", "layers: 2\n    rms_norm_ep: 1e-5", "rms_norm_ep: unknown field. Did you mean 'rms_norm_eps'?"),
        ("layers: 2", "layers: 2\n    rms_norm_eps: small", "rms_norm_eps: 'small' is not a positive number"),
        (
            "layers: 2",
            "layers: 2\n    tie_word_embeddings: 'no'",
            "tie_word_embeddings: 'no' is neither true nor false",
        ),
        (
            "layers: 2",
            "layers: 2\n    rope_parameters: {rope_thetta: 500000}",
            "from_scratch.config.rope_parameters.rope_thetta: unknown field. Did you mean 'rope_theta'?",
        ),
        ("layers: 2", "layers: 2\n    rope_scaling: linear", "rope_scaling: 'linear' is not a mapping"),
        (
            "LlamaForCausalLM",
            "LlamaForCausalML",
            "from_scratch.config: 'LlamaForCausalML' is not supported…'LlamaForCausalLM'?",
        ),
        (
            "architectures: [LlamaForCausalLM]",
            "model_type: lama",
            "model_type: 'lama' is not supported…Did you mean 'llama'?",
        ),
        ("architectures: [LlamaForCausalLM]", "bos_token_id: 0", "from_scratch.config: architectures is missing"),
        (
            "[LlamaForCausalLM]",
            "[LlamaForCausalLM]\n    model_type: qwen2",
            "model_type: 'qwen2' is not the model_type of",
        ),
    ],
)
def test_errors_of_a_config(project: Project, edit: Edit, old: str, new: str, expected: str) -> None:
    edit(TINY, old, new)
    errors, _ = findings(project)
    assert any(all(part in error for part in expected.split("…")) for error in errors), errors


def test_a_field_of_no_meaning_is_a_warning(project: Project, edit: Edit) -> None:
    edit(TINY, "num_hidden_layers: 2", "num_hidden_layers: 2\n    mood: sunny\n    torch_dtype: float32")
    errors, warnings = findings(project)
    assert errors == []
    (warning,) = warnings
    assert "from_scratch.config.mood: no field that this architecture is known to have" in warning


def test_the_families_are_those_of_the_conversion() -> None:
    assert {name: a.model_types[0] for a in ARCHITECTURES for name in a.classes} == CLASSES


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_what_transformers_and_the_conversion_read_is_known(architecture: Architecture) -> None:
    from transformers import AutoConfig

    class Recorder(dict[str, Any]):
        read: ClassVar[set[str]] = set()

        def get(self, key: str, default: Any = None) -> Any:  # type: ignore[override]
            self.read.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> Any:
            self.read.add(key)
            return super().__getitem__(key)

        def __contains__(self, key: object) -> bool:
            self.read.add(str(key))
            return super().__contains__(key)

    config = AutoConfig.for_model(architecture.model_types[0])
    known = known_fields(architecture.model_types[0])
    assert set(config.to_dict()) | set(config.attribute_map) <= known
    recorder = Recorder(config.to_dict())
    architecture.dimensions(recorder)
    architecture.megatron_arguments(recorder)
    architecture.unsupported(recorder)
    architecture.entries_for(recorder)
    assert Recorder.read <= known
