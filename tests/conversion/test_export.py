"""Export of checkpoints as training leaves them: any layout, padded vocabulary, optimizer state beside the weights."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pamp_pipelines.conversion.dtypes import by_name
from pamp_pipelines.conversion.payload import write_object
from pamp_pipelines.conversion.torch_dist import StoredChunk, StoredObject, StoredTensor, write_index
from pamp_pipelines.errors import InputError

Grid = Callable[[str, torch.Tensor], list[tuple[tuple[int, ...], tuple[int, ...]]]]


def write_checkpoint(directory: Path, tensors: dict[str, torch.Tensor], grid: Grid) -> None:
    """A checkpoint as Megatron's ranks write it: payloads by torch.save, in chunks of our choice, over two files."""
    directory.mkdir(parents=True)
    streams = [io.BytesIO(), io.BytesIO()]
    stored = []
    for key, tensor in tensors.items():
        chunks = []
        for number, (offset, size) in enumerate(grid(key, tensor)):
            file = number % 2
            part = tensor[tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))]
            start = streams[file].tell()
            torch.save(part, streams[file])  # a view: not contiguous where columns are cut
            chunks.append(StoredChunk(offset, size, f"__{file}_0.distcp", start, streams[file].tell() - start))
        stored.append(StoredTensor(key, by_name(str(tensor.dtype)), tuple(tensor.shape), tuple(chunks)))
    start = streams[0].tell()
    length = write_object(streams[0], [{"iteration": 20}])
    for number, stream in enumerate(streams):
        (directory / f"__{number}_0.distcp").write_bytes(stream.getvalue())
    write_index(directory, stored, [StoredObject("common_state/shard_0_1", "__0_0.distcp", start, length)])


def whole(_: str, tensor: torch.Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [((0,) * tensor.dim(), tuple(tensor.shape))]


ROWS = ("linear_qkv.weight", "linear_qkv.bias", "linear_fc1.weight", "word_embeddings.weight", "output_layer.weight")
COLUMNS = ("linear_proj.weight", "linear_fc2.weight")


def tensor_parallel(key: str, tensor: torch.Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """One chunk per layer and per tensor-parallel rank of two, as `sharded_state_dict` cuts them."""
    shape = list(tensor.shape)
    stacked = key.startswith("decoder.layers.")
    boxes = [((0,) * len(shape), tuple(shape))]
    if stacked:
        boxes = [((i, *[0] * (len(shape) - 1)), (1, *shape[1:])) for i in range(shape[0])]
    if key.endswith((*ROWS, *COLUMNS)) and not key.startswith("optimizer."):
        axis = len(shape) - 1 if key.endswith(COLUMNS) else (1 if stacked else 0)
        boxes = [half for box in boxes for half in halves(box, axis)]
    return boxes


def halves(box: tuple[tuple[int, ...], tuple[int, ...]], axis: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    offset, size = box
    cut = size[axis] // 2
    first = (*size[:axis], cut, *size[axis + 1 :])
    second = (*size[:axis], size[axis] - cut, *size[axis + 1 :])
    moved = (*offset[:axis], offset[axis] + cut, *offset[axis + 1 :])
    return [(offset, first), (moved, second)]


def trained(hf: dict[str, torch.Tensor], family: str, tied: bool, reference: Any) -> dict[str, torch.Tensor]:
    """What training saves: weights with the vocabulary padded to 256 rows, and optimizer state."""
    tensors = reference(hf, family, tied)
    for key in ("embedding.word_embeddings.weight", "output_layer.weight"):
        if key in tensors:
            tensors[key] = torch.cat([tensors[key], torch.full((5, 48), 7.0, dtype=tensors[key].dtype)])
    tensors["optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight"] = torch.randn(3, 48, 92)
    tensors["optimizer.state.fp32_param.output_layer.weight"] = torch.randn(256, 48)
    return tensors


@pytest.mark.parametrize("grid", [whole, tensor_parallel], ids=["whole", "tensor-parallel"])
@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen2", True), ("qwen3", False)])
def test_any_layout(
    family: str, tied: bool, grid: Grid, build: Any, weights: Any, reference: Any, exported: Any, tmp_path: Path
) -> None:
    source = build(family, tied, "bfloat16")
    original = weights(source)
    write_checkpoint(tmp_path / "iter_0000020", trained(original, family, tied, reference), grid)
    result = weights(exported(tmp_path / "iter_0000020", source))
    assert result.keys() == original.keys()
    for name, tensor in original.items():
        assert torch.equal(result[name], tensor), name


def test_layers_with_keys_of_their_own(build: Any, weights: Any, reference: Any, exported: Any, tmp_path: Path) -> None:
    """Checkpoints of models with unlike layers name each layer; old ones have the norms under their module's name."""
    source = build("llama", False, "bfloat16")
    original = weights(source)
    tensors = {}
    for key, tensor in reference(original, "llama", False).items():
        if not key.startswith("decoder.layers."):
            tensors[key] = tensor
            continue
        for layer in range(3):
            own = key.replace("decoder.layers.", f"decoder.layers.{layer}.")
            own = own.replace("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight")
            own = own.replace("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight")
            tensors[own] = tensor[layer]
    write_checkpoint(tmp_path / "own", tensors, whole)
    result = weights(exported(tmp_path / "own", source))
    assert all(torch.equal(result[n], t) for n, t in original.items())

    del tensors["decoder.layers.1.mlp.linear_fc2.weight"]
    write_checkpoint(tmp_path / "missing", tensors, whole)
    with pytest.raises(InputError, match=r"linear_fc2\.weight is missing for layers \[1\]"):
        exported(tmp_path / "missing", source)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_cast(dtype: str, build: Any, weights: Any, imported: Any, exported: Any) -> None:
    from transformers import AutoModelForCausalLM

    source = build("llama", False, "float32")
    target = imported(source)
    result = exported(target / "checkpoint" / "release", target / "hf_template", dtype=dtype)
    assert json.loads((result / "config.json").read_text())["dtype"] == dtype
    model = AutoModelForCausalLM.from_pretrained(result)
    assert model.dtype == getattr(torch, dtype)
    for name, tensor in weights(source).items():
        assert torch.equal(weights(result)[name], tensor.to(getattr(torch, dtype))), name


def test_config_is_kept_but_for_what_the_weights_decide(build: Any, imported: Any, exported: Any) -> None:
    target = imported(build("qwen2", False, "bfloat16"))
    template = target / "hf_template"
    release = target / "checkpoint" / "release"
    assert (exported(release, template) / "config.json").read_bytes() == (template / "config.json").read_bytes()
    before = json.loads((template / "config.json").read_text())
    after = json.loads((exported(release, template, dtype="float32") / "config.json").read_text())
    assert {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)} == {"dtype"}
    # configs of transformers 4 say torch_dtype
    old = {k: v for k, v in before.items() if k not in ("dtype", "architectures")} | {"torch_dtype": "bfloat16"}
    (template / "config.json").write_text(json.dumps(old))
    after = json.loads((exported(release, template, dtype="float32") / "config.json").read_text())
    assert after == old | {"torch_dtype": "float32", "architectures": ["Qwen2ForCausalLM"]}


def test_every_file_beside_the_weights_is_in_the_export(
    build: Any, imported: Any, exported: Any, tmp_path: Path
) -> None:
    """Tokenizers of all kinds, chat templates, generation settings and licences, byte for byte."""
    import shutil

    source = tmp_path / "source"
    shutil.copytree(build("llama", False, "bfloat16"), source)
    names = (
        "generation_config.json", "tokenizer.model", "tokenizer.json", "tokenizer_config.json", "vocab.json",
        "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja", "qwen.tiktoken",
        "additional_chat_templates/tool_use.jinja", "LICENSE", "README.md", "tekken.json", "preprocessor_config.json",
    )  # fmt: skip
    for number, name in enumerate(names):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(json.dumps({"n": number}).encode() + b"\r\n \xff"[: 3 + number % 2])
    target = imported(source)
    result = exported(target / "checkpoint" / "release", target / "hf_template")
    for name in names:
        if name != "README.md":  # an export has a model card of its own
            assert (result / name).read_bytes() == (source / name).read_bytes(), name
    assert (result / "README.md").is_file()


def test_values_beyond_float16(build: Any, weights: Any, reference: Any, exported: Any, tmp_path: Path) -> None:
    source = build("llama", False, "bfloat16")
    tensors = reference(weights(source), "llama", False)
    tensors["decoder.final_layernorm.weight"][3] = 1e6
    write_checkpoint(tmp_path / "large", tensors, whole)
    with pytest.raises(InputError, match=r"model\.norm\.weight holds values beyond the range of float16"):
        exported(tmp_path / "large", source, dtype="float16")


def problems(checkpoint: Path, template: Path, exported: Any) -> list[str]:
    try:
        exported(checkpoint, template)
    except InputError as error:
        return str(error).splitlines()
    return []


def test_checkpoints_of_another_model(build: Any, weights: Any, reference: Any, exported: Any, tmp_path: Path) -> None:
    """Megatron itself would load most of these without a word."""
    llama, qwen2 = build("llama", False, "bfloat16"), build("qwen2", False, "bfloat16")
    write_checkpoint(tmp_path / "bias", reference(weights(qwen2), "qwen2", False), whole)
    (line,) = problems(tmp_path / "bias", llama, exported)
    assert "holds decoder.layers.self_attention.linear_qkv.bias, which architecture llama does not have" in line

    tensors = reference(weights(llama), "llama", False)
    write_checkpoint(tmp_path / "no-bias", tensors, whole)
    (line,) = problems(tmp_path / "no-bias", qwen2, exported)
    assert "linear_qkv.bias is missing" in line

    (line,) = problems(tmp_path / "no-bias", build("llama", True, "bfloat16"), exported)
    assert "holds output_layer.weight" in line

    tensors["embedding.word_embeddings.weight"] = tensors["embedding.word_embeddings.weight"][:250]
    tensors["decoder.layers.mlp.linear_fc2.weight"] = torch.zeros(4, 48, 92, dtype=torch.bfloat16)
    tensors["decoder.layers.mlp.linear_fc1.layer_norm_weight"] = torch.zeros(3, 47, dtype=torch.bfloat16)
    write_checkpoint(tmp_path / "shapes", tensors, whole)
    lines = problems(tmp_path / "shapes", llama, exported)
    assert len(lines) == 3
    assert "holds 250 rows of vocabulary, config.json has vocab_size 251" in lines[0]
    assert "has shape [3, 47]; config.json implies [3, 48]" in lines[1]
    assert "has shape [4, 48, 92]; config.json implies [3, 48, 92]" in lines[2]


def test_chunks_that_do_not_cover(build: Any, weights: Any, reference: Any, exported: Any, tmp_path: Path) -> None:
    source = build("llama", False, "bfloat16")
    tensors = reference(weights(source), "llama", False)

    def gap(key: str, tensor: torch.Tensor) -> list[Any]:
        boxes = tensor_parallel(key, tensor)
        return boxes[1:] if key.endswith("linear_proj.weight") else boxes

    def twice(key: str, tensor: torch.Tensor) -> list[Any]:
        boxes = tensor_parallel(key, tensor)
        return [*boxes[:-1], boxes[0]] if key.endswith("linear_proj.weight") else boxes

    write_checkpoint(tmp_path / "gap", tensors, gap)
    assert "linear_proj.weight: chunks hold" in problems(tmp_path / "gap", source, exported)[0]
    write_checkpoint(tmp_path / "twice", tensors, twice)
    assert "overlap" in problems(tmp_path / "twice", source, exported)[0]


def test_payload_that_is_not_what_the_index_says(build: Any, imported: Any, exported: Any) -> None:
    target = imported(build("llama", False, "bfloat16"))
    release = target / "checkpoint" / "release"
    file = release / "__0_0.distcp"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"BFloat16Storage", b"HalfStorage\nX\x00\x00\x00\x000", 1)[: len(content)])
    (line,) = problems(release, target / "hf_template", exported)
    assert "__0_0.distcp at byte" in line


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_non_finite_weights_warn_on_both_ways(
    kind: str, build: Any, weights: Any, in_process: None, tmp_path: Path
) -> None:
    import shutil

    from safetensors.torch import save_file

    from pamp_pipelines.conversion.exporter import export_hf
    from pamp_pipelines.conversion.importer import import_hf
    from pamp_pipelines.conversion.job import plain_export_job, plain_import_job
    from pamp_pipelines.lake.events import Event

    source = tmp_path / "source"
    shutil.copytree(build("qwen3", True, "bfloat16"), source)
    tensors = weights(source)
    tensors["model.layers.2.mlp.up_proj.weight"][5, 7] = float(kind)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    seen: list[Event] = []
    first = import_hf(plain_import_job(source, tmp_path / "imported"), seen.append)
    second = export_hf(plain_export_job(tmp_path / "imported", tmp_path / "exported"), seen.append)
    for artifact in (first, second):
        (check,) = [c for c in artifact.manifest.checks if c.name == "finite_weights"]
        assert (check.passed, check.severity) == (False, "WARN")
        assert check.metadata == {"model.layers.2.mlp.up_proj.weight": 1}
    assert sum("up_proj" in e.data.get("message", "") for e in seen if e.kind == "warning") == 2


def test_reader_counts_what_it_fills(build: Any, imported: Any) -> None:
    """The plan proves coverage from the index; the reader counts again what it really copied."""
    from dataclasses import replace

    from pamp_pipelines.conversion.export_plan import plan_export
    from pamp_pipelines.conversion.gather import ChunkReader
    from pamp_pipelines.conversion.hf_source import read_source
    from pamp_pipelines.conversion.layout import layout_of
    from pamp_pipelines.conversion.torch_dist import read_checkpoint
    from pamp_pipelines.errors import VerificationFailed

    source = build("llama", False, "bfloat16")
    checkpoint = read_checkpoint(imported(source, chunk_bytes=3000) / "checkpoint" / "release")
    plan = plan_export(layout_of(read_source(source).config), checkpoint, None, 10**9)
    item = next(item for item in plan.items if item.name == "model.embed_tokens.weight")
    reader = ChunkReader(checkpoint.dir)
    assert reader.rows(item, 0, 251).shape == (251, 48)
    with pytest.raises(VerificationFailed, match=r"of 12048 elements of model\.embed_tokens\.weight"):
        reader.rows(replace(item, chunks=item.chunks[1:]), 0, 251)
    reader.close()


def test_a_legacy_common_state_beside_the_index_is_not_opened(
    build: Any, weights: Any, reference: Any, exported: Any, tmp_path: Path
) -> None:
    """Megatron before 0.19 pickled its common state into `common.pt`; weights do not need it, and it may hold code."""
    source = build("qwen3", False, "bfloat16")
    original = weights(source)
    directory = tmp_path / "iter_0000020"
    write_checkpoint(directory, trained(original, "qwen3", False, reference), tensor_parallel)
    (directory / "common.pt").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    result = weights(exported(directory, source))
    assert all(torch.equal(result[name], tensor) for name, tensor in original.items())


def test_a_vocabulary_padded_for_four_ranks(weights: Any, exported: Any, config_of: Any, tmp_path: Path) -> None:
    """151669 rows at tensor parallel 4: Megatron pads to a multiple of 512, and the last rank's rows end in padding."""
    from pamp_pipelines.conversion.layout import layout_of

    rows, padded, width = 151_669, 152_064, 8
    config = config_of("qwen3", tied=True, vocab_size=rows, hidden_size=width, num_hidden_layers=1)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    tensors = {key: torch.randn(shape).to(torch.bfloat16) for _, key, shape in layout_of(config).tensors()}
    name = "embedding.word_embeddings.weight"
    tensors[name] = torch.cat([tensors[name], torch.zeros(padded - rows, width, dtype=torch.bfloat16)])

    def four_ranks(key: str, tensor: torch.Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        if key != name:
            return whole(key, tensor)
        return [((rank * padded // 4, 0), (padded // 4, width)) for rank in range(4)]

    write_checkpoint(tmp_path / "checkpoint", tensors, four_ranks)
    found = weights(exported(tmp_path / "checkpoint", tmp_path / "source"))
    assert torch.equal(found["model.embed_tokens.weight"], tensors[name][:rows])
