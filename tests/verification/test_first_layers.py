"""A checkpoint through an index of our own: what it holds, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pamp_pipelines.conversion.torch_dist import StoredTensor, read_checkpoint
from pamp_pipelines.errors import InputError
from pamp_pipelines.verification.first_layers import first_layers_config, link_weights
from tests.verification.conftest import LAYERS, Model, with_tensors

WEIGHT = "decoder.layers.self_attention.linear_proj.weight"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("layers", [1, 2, LAYERS])
def test_the_first_rows_are_those_of_the_whole(models: dict[str, Model], tmp_path: Path, layers: int) -> None:
    from torch.distributed.checkpoint import FileSystemReader, load

    link_weights(models["llama"].checkpoint, tmp_path / "view", layers=layers)
    metadata = FileSystemReader(tmp_path / "view").read_metadata().state_dict_metadata
    assert metadata[WEIGHT].size[0] == layers
    assert metadata["embedding.word_embeddings.weight"].size[0] == 251
    assert f"decoder.layers.mlp.linear_fc1._extra_state/shard_{layers - 1}_{layers}" in metadata
    assert f"decoder.layers.mlp.linear_fc1._extra_state/shard_{layers}_{layers}" not in metadata

    import torch

    whole = {WEIGHT: torch.empty(LAYERS, 48, 60)}
    part = {WEIGHT: torch.empty(layers, 48, 60)}
    load(whole, storage_reader=FileSystemReader(models["llama"].checkpoint), no_dist=True)
    load(part, storage_reader=FileSystemReader(tmp_path / "view"), no_dist=True)
    np.testing.assert_array_equal(part[WEIGHT].numpy(), whole[WEIGHT][:layers].numpy())


def test_no_weight_is_copied(models: dict[str, Model], tmp_path: Path) -> None:
    link_weights(models["llama"].checkpoint, tmp_path / "view", layers=2)
    own = [file for file in (tmp_path / "view").glob("*.distcp") if not file.is_symlink()]
    assert [file.name for file in own] == ["objects.distcp"]
    assert own[0].stat().st_size < 5_000


def test_objects_of_the_original_are_not_opened(models: dict[str, Model], tmp_path: Path) -> None:
    """Megatron and torch would unpickle them; what code an `_extra_state` names is the checkpoint's author's choice."""
    stored = read_checkpoint(models["llama"].checkpoint)
    viewed = link_weights(models["llama"].checkpoint, tmp_path / "view")
    assert viewed.objects.keys() == stored.objects.keys()
    assert {item.file for item in viewed.objects.values()} == {"objects.distcp"}


def test_state_of_the_optimizer_is_left_out(models: dict[str, Model], tmp_path: Path) -> None:
    def add(tensors: dict[str, StoredTensor]) -> None:
        tensors["optimizer.state.exp_avg." + WEIGHT] = replace(tensors[WEIGHT], key="optimizer.state.exp_avg." + WEIGHT)

    checkpoint = with_tensors(models["llama"], tmp_path / "trained", add)
    viewed = link_weights(checkpoint, tmp_path / "view")
    assert viewed.tensors.keys() == read_checkpoint(models["llama"].checkpoint).tensors.keys()


def test_more_layers_than_there_are(models: dict[str, Model], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"holds {LAYERS} layers; 4 were asked for"):
        link_weights(models["llama"].checkpoint, tmp_path / "view", layers=4)


def test_a_piece_that_spans_the_cut(models: dict[str, Model], tmp_path: Path) -> None:
    def join(tensors: dict[str, StoredTensor]) -> None:
        chunk = tensors[WEIGHT].chunks[0]
        tensors[WEIGHT] = replace(tensors[WEIGHT], chunks=(replace(chunk, size=(LAYERS, *chunk.size[1:])),))

    checkpoint = with_tensors(models["llama"], tmp_path / "joined", join)
    with pytest.raises(InputError, match=r"in one piece for layers 0 to 2; compare 3 or all"):
        link_weights(checkpoint, tmp_path / "view", layers=2)


def test_config_of_the_first_layers() -> None:
    config = {"num_hidden_layers": 3, "layer_types": ["a", "b", "c"], "hidden_size": 4}
    shortened = {"num_hidden_layers": 2, "layer_types": ["a", "b"], "hidden_size": 4}
    assert first_layers_config(config, 2) == shortened
    assert first_layers_config(config, None) == config
