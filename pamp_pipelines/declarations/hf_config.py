"""Where a declared model's files are, and its ``config.json``. Needs neither torch nor transformers."""

import json
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.model import Model
from pamp_pipelines.errors import InputError
from pamp_pipelines.project import Project


def hf_directory(project: Project, model: Model) -> Path:
    """Directory with config.json, tokenizer and weights of a model that is not from scratch.

    A hub model is taken from the local cache; only what is missing there is downloaded, unless HF_HUB_OFFLINE is set.

    Raises:
        InputError: the directory is missing, the download failed, or the model is from scratch.
    """
    if model.hf is None:
        raise InputError("a from_scratch model has no Hugging Face directory: its config is in the declaration")
    if model.hf.path is not None:
        return _existing_directory(project, model.hf.path)
    assert model.hf.id is not None
    return _hub_snapshot(model.hf.id, model.hf.revision)


def cached_directory(model: Model) -> Path | None:
    """Directory with at least config.json of a hub model, if the local cache has one. Never uses the network."""
    assert model.hf is not None
    assert model.hf.id is not None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model.hf.id, "config.json", revision=model.hf.revision)
    return Path(found).parent if isinstance(found, str) else None


def read_hf_config(project: Project, model: Model) -> dict[str, Any]:
    """The Hugging Face ``config.json`` of a declared model, as it stands in the source.

    Raises:
        InputError: no such file, or it is not a JSON object.
    """
    if model.from_scratch is not None:
        return dict(model.from_scratch.config)
    return load_hf_config(hf_directory(project, model))


def load_hf_config(directory: Path) -> dict[str, Any]:
    """``config.json`` of a Hugging Face directory.

    Raises:
        InputError: no such file, or it is not a JSON object.
    """
    path = directory / "config.json"
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise InputError(f"{path} is not a file: {directory} is not a Hugging Face model directory")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: {directory} is not a Hugging Face model directory") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} holds a {type(config).__name__}, not a JSON object")
    return config


def _existing_directory(project: Project, declared: str) -> Path:
    path = project.resolve(declared)
    if path.is_dir():
        return path
    hint = "give the directory that holds config.json"
    if path.is_relative_to(project.data / "models"):
        hint = "run `make setup`, which unpacks the models of the demo, or give the directory that holds config.json"
    raise InputError(f"{path} is not a directory: {hint}")


def _hub_snapshot(repository: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    ignored = ["*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "original/*"]
    try:
        cached = Path(snapshot_download(repository, revision=revision, ignore_patterns=ignored, local_files_only=True))
        if _complete(cached):
            return cached
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(repository, revision=revision, ignore_patterns=ignored))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InputError(
            f"{repository} at revision {revision} is incomplete in the local cache and cannot be downloaded: {error}. "
            "Go online once, correct `hf.id` and `hf.revision`, or give a local `hf.path`."
        ) from error


def _complete(snapshot: Path) -> bool:
    """A cached snapshot can hold only the files that somebody asked for, e.g. config.json."""
    if not (snapshot / "config.json").is_file():
        return False
    index = snapshot / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return all((snapshot / shard).is_file() for shard in shards)
    return (snapshot / "model.safetensors").is_file()
