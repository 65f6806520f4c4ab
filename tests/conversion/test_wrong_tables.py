"""A table with a mistake is caught: by the plan where names, shapes or coverage tell, else by the weights themselves.

Import and export share the table, so a mistake that both make alike survives a round trip; it does not survive the
comparison with an independent description of Megatron's layout (`reference`), nor a forward pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pamp_pipelines.conversion import layout as layout_module
from pamp_pipelines.conversion.architectures import Architecture, Entry, Op, architecture_of
from pamp_pipelines.conversion.architectures.qwen2 import QWEN2
from pamp_pipelines.conversion.hf_source import read_source
from pamp_pipelines.conversion.layout import layout_of
from pamp_pipelines.conversion.plan import plan_import
from pamp_pipelines.conversion.verify_files import verify_checkpoint_files
from pamp_pipelines.errors import InputError, VerificationFailed
from tests.conversion.test_expert_families import CONFIGS, quantised, source, with_prediction

__all__ = ["source"]


def mutations(entry: Entry) -> Iterator[tuple[str, tuple[Entry, ...]]]:
    """(what is wrong, what stands in the place of the entry)."""
    yield "left out", ()
    yield "twice", (entry, entry)
    yield "source misspelt", (with_source(entry, 0, entry.sources[0].name + "s"),)
    if len(entry.axes) > 1 and entry.axes[-1] != entry.axes[-2]:
        swapped = (*entry.axes[:-2], entry.axes[-1], entry.axes[-2])
        if entry.axes[-2:] != ("L", entry.axes[-1]):
            yield "axes swapped", (replace(entry, axes=swapped),)
    if len(entry.sources) > 1:
        yield "sources reversed", (replace(entry, sources=entry.sources[::-1]),)
        yield "source missing", (replace(entry, sources=entry.sources[:-1]),)
        yield "first source for all", (replace(entry, sources=(entry.sources[0],) * len(entry.sources)),)
    if entry.op is Op.GROUP_QKV:
        yield "joined instead of grouped", (replace(entry, op=Op.JOIN),)
    if entry.op is Op.JOIN:
        other = entry.key.rpartition("mlp.")[0] + "mlp.linear_fc2.weight"
        yield "key of another entry", (replace(entry, key=other),)


def with_source(entry: Entry, number: int, name: str) -> Entry:
    sources = list(entry.sources)
    sources[number] = replace(sources[number], name=name)
    return replace(entry, sources=tuple(sources))


CASES = [(i, what, stands) for i, entry in enumerate(QWEN2.entries) for what, stands in mutations(entry)]


@pytest.mark.parametrize(
    ("number", "what", "stands"), CASES, ids=[f"{QWEN2.entries[i].key.split('.', 2)[-1]}-{w}" for i, w, _ in CASES]
)
def test_mutated_entry(
    number: int,
    what: str,
    stands: tuple[Entry, ...],
    build: Any,
    weights: Any,
    reference: Any,
    load_checkpoint: Any,
    imported: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = build("qwen2", False, "bfloat16")
    wrong = replace(QWEN2, entries=(*QWEN2.entries[:number], *stands, *QWEN2.entries[number + 1 :]))
    monkeypatch.setattr(layout_module, "architecture_of", lambda _: wrong)
    try:
        target = imported(source)
    except (InputError, VerificationFailed):
        return
    # as many elements in the same places: only the weights can tell
    assert what in ("sources reversed", "joined instead of grouped")
    stored = load_checkpoint(target / "checkpoint" / "release")
    expected = reference(weights(source), "qwen2", False)
    assert stored.keys() == expected.keys()
    different = [key for key, tensor in expected.items() if not torch.equal(stored[key], tensor)]
    assert different == [QWEN2.entries[number].key]


# every family --------------------------------------------------------------------------------------------------------

_DENSE = ("llama", "mistral", "qwen3")
FAMILY_NAMES = (*_DENSE, *CONFIGS, "deepseek_v3 with prediction", "deepseek_v3 in 8-bit floats")
UNSEEN_BY_PLANS = ("sources reversed", "joined instead of grouped", "key of another entry")
"""Mistakes that move as many elements between the same places, and a name that nothing else has."""


@pytest.fixture
def sources(build: Any, source: Any, tmp_path: Path) -> Callable[[str], Path]:
    """The Hugging Face directory of any family, that of DeepSeek-V3 also with multi-token prediction or in 8 bits."""

    def find(family: str) -> Path:
        if family in _DENSE:
            return Path(build(family, False, "bfloat16"))
        if family in CONFIGS:
            return Path(source(family))
        if "8-bit" in family:
            quantised(source("deepseek_v3"), tmp_path / "quantised")
            return tmp_path / "quantised"
        return with_prediction(source("deepseek_v3"), tmp_path / "prediction", lambda tensors: None)

    return find


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_mutated_entry_is_found(
    family: str, sources: Any, imported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan; else by the verdict of the right table on the checkpoint that the wrong one wrote."""
    directory = sources(family)
    hf = read_source(directory)
    right = architecture_of(hf.config)
    held = {entry.key for entry in layout_of(hf.config).entries if next(layout_of(hf.config).blocks_of(entry), None)}
    assert len(held) >= 9
    unseen = set()
    for number, entry in enumerate(right.entries):
        if entry.key not in held or not entry.when.holds(hf.config):
            continue
        for what, stands in mutations(entry):
            wrong = replace(right, entries=(*right.entries[:number], *stands, *right.entries[number + 1 :]))
            with monkeypatch.context() as patch:
                patch.setattr(layout_module, "architecture_of", lambda _, table=wrong: table)
                try:
                    plan_import(layout_of(hf.config), hf)
                except (InputError, VerificationFailed):
                    continue
                assert what in UNSEEN_BY_PLANS, f"{entry.key}: {what}"
                unseen.add(entry.key)
                target = imported(directory)
            _, whole, equal = verify_checkpoint_files(directory, target).checks
            assert not equal.passed, f"{entry.key}: {what}"
            if what == "key of another entry":
                assert f"{entry.key.rpartition('.mlp.')[2]} is missing" in whole.description
            else:
                assert entry.sources[0].name.split(".")[-2] in equal.description
    joined = {entry.key for entry in right.entries if len(entry.sources) > 1 and entry.key in held}
    assert unseen == joined


def test_the_verdict_of_the_right_table_on_a_wrong_checkpoint(
    build: Any, imported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older version with a mistake wrote: every kind of static difference is named."""
    source = build("qwen2", False, "bfloat16")
    for number, entry in enumerate(QWEN2.entries):
        if len(entry.sources) < 2:
            continue
        wrong = replace(entry, sources=entry.sources[::-1])
        mutated: Architecture = replace(QWEN2, entries=(*QWEN2.entries[:number], wrong, *QWEN2.entries[number + 1 :]))
        with monkeypatch.context() as patch:
            patch.setattr(layout_module, "architecture_of", lambda _, table=mutated: table)
            try:
                target: Path = imported(source)
            except (InputError, VerificationFailed):
                continue
        complete, whole, equal = verify_checkpoint_files(source, target).checks
        assert complete.passed
        assert whole.passed
        assert not equal.passed
        assert entry.sources[0].name.format(layer=0) in equal.description


def test_one_flipped_bit_is_named(build: Any, weights: Any, imported: Any) -> None:
    from pamp_pipelines.conversion.payload import read_array
    from pamp_pipelines.conversion.torch_dist import read_checkpoint

    source = build("qwen2", False, "bfloat16")
    target = imported(source)
    stored = read_checkpoint(target / "checkpoint" / "release")
    (first, *_) = stored.tensors["decoder.layers.mlp.linear_fc2.weight"].chunks
    file = stored.dir / first.file
    with file.open("rb") as stream:
        start = read_array(file, stream, first.start, first.length).start
    data = bytearray(file.read_bytes())
    data[start + 2 * (92 * 3 + 5)] ^= 1
    file.write_bytes(data)
    equal = verify_checkpoint_files(source, target).checks[2]
    assert not equal.passed
    assert equal.description == "model.layers.0.mlp.down_proj.weight: 1 elements differ, the first at [3, 5]"


def test_another_model_of_the_same_shape(build: Any, imported: Any, tmp_path: Path) -> None:
    target = imported(build("qwen2", False, "bfloat16"))
    verdict = verify_checkpoint_files(build("qwen2", True, "bfloat16"), target).checks
    assert [c.passed for c in verdict] == [True, False, False]
    assert "holds output_layer.weight" in verdict[1].description
    half = verify_checkpoint_files(build("qwen2", False, "float16"), target).checks[2]
    assert "is bfloat16 in the checkpoint, F16 in the source" in half.description
