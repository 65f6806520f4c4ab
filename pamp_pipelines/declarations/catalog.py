"""All declarations of a project by name, read at once and reported at once."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pamp_pipelines.declarations.base import MAX_NAME, NAME_PATTERN, Declaration
from pamp_pipelines.declarations.corpus import Corpus
from pamp_pipelines.declarations.evaluation import Evaluation
from pamp_pipelines.declarations.files import list_declarations
from pamp_pipelines.declarations.model import Model
from pamp_pipelines.declarations.name_clashes import name_clashes
from pamp_pipelines.declarations.profile import ComputeProfile
from pamp_pipelines.declarations.suggest import did_you_mean
from pamp_pipelines.declarations.training_config import TrainingConfig
from pamp_pipelines.declarations.validate import validated
from pamp_pipelines.declarations.yaml_loader import Loc, YamlDocument, dotted, read_yaml
from pamp_pipelines.errors import DeclarationError, InputError, Problem
from pamp_pipelines.project import Project

KINDS: Mapping[str, type[Declaration]] = {
    "corpus": Corpus,
    "model": Model,
    "training_config": TrainingConfig,
    "evaluation": Evaluation,
    "profile": ComputeProfile,
}
"""Kind of declaration to its pydantic model."""


@dataclass(frozen=True)
class Catalog:
    """Everything that a project declares; each mapping is sorted by name."""

    project: Project
    corpora: dict[str, Corpus] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    training_configs: dict[str, TrainingConfig] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    profiles: dict[str, ComputeProfile] = field(default_factory=dict)
    documents: dict[tuple[str, str], YamlDocument] = field(default_factory=dict, repr=False, compare=False)
    """Source files with the lines of their fields, by kind and name; also of declarations that are not valid."""
    broken: dict[tuple[str, str], tuple[Problem, ...]] = field(default_factory=dict, compare=False)
    """What is wrong with the declarations that were left out, by kind and name: see ``usable_catalog``."""
    unnamed: frozenset[tuple[str, str]] = field(default_factory=frozenset, compare=False)
    """Those of them whose very names are what is wrong."""

    def corpus(self, name: str) -> Corpus:
        """Raises InputError when no such corpus is declared, or its file is broken; so do the four lookups below."""
        return self._lookup("corpus", name, self.corpora)

    def model(self, name: str) -> Model:
        return self._lookup("model", name, self.models)

    def training_config(self, name: str) -> TrainingConfig:
        return self._lookup("training_config", name, self.training_configs)

    def evaluation(self, name: str) -> Evaluation:
        return self._lookup("evaluation", name, self.evaluations)

    def profile(self, name: str) -> ComputeProfile:
        return self._lookup("profile", name, self.profiles)

    def declared(self, kind: str) -> Mapping[str, Declaration]:
        """The declarations of a kind by name; ``kind``: a key of ``KINDS``."""
        mappings: dict[str, Mapping[str, Declaration]] = {
            "corpus": self.corpora,
            "model": self.models,
            "training_config": self.training_configs,
            "evaluation": self.evaluations,
            "profile": self.profiles,
        }
        return mappings[kind]

    def names(self, kind: str) -> list[str]:
        """Names of a kind of declaration, sorted, also of those whose file is broken."""
        broken = self.broken.keys() - self.unnamed
        return sorted({*self.declared(kind), *(name for of_kind, name in broken if of_kind == kind)})

    def _lookup[T](self, kind: str, name: str, declared: Mapping[str, T]) -> T:
        if name in declared:
            return declared[name]
        for (of_kind, broken), problems in self.broken.items():
            # a corpus may be one that a broken file makes besides
            if of_kind == kind and (name == broken or (kind == "corpus" and name.startswith(f"{broken}."))):
                raise DeclarationError(problems)
        known = ", ".join(declared) or "none"
        what = kind.replace("_", " ")
        raise InputError(f"no {what} {name!r} is declared.{did_you_mean(name, declared)} Declared: {known}.")

    def file_of(self, kind: str, name: str) -> Path:
        """The YAML file of a declaration, of a corpus of ``shard_sets`` its origin's; ``kind``: a key of ``KINDS``."""
        document = self.documents.get((kind, name))
        return document.path if document else folder_of(self.project, kind) / f"{name}.yaml"

    def problem(self, kind: str, name: str, loc: Loc, message: str) -> Problem:
        """A problem of one field of a declaration, with its file and line."""
        document = self.documents.get((kind, name))
        return Problem(self.file_of(kind, name), document.line_of(loc) if document else 0, dotted(loc), message)

    def models_of(self, config: str) -> list[str]:
        """Models that a training config may train, sorted."""
        listed = self.training_config(config).models
        return sorted(self.models) if listed is None else sorted(set(listed) & set(self.models))

    def pairs(self) -> list[tuple[str, str]]:
        """All declared pairs of a model and a training config, sorted."""
        return sorted((model, config) for config in self.training_configs for model in self.models_of(config))

    def require_pair(self, model: str, config: str) -> None:
        """Raises InputError, naming the file, when the config is not for the model."""
        self.model(model)
        if model not in self.models_of(config):
            raise InputError(
                f"{self.file_of('training_config', config)}: models: {model!r} is not listed, so {config!r} does not "
                f"train it. Add it there, or take one of {', '.join(self.models_of(config)) or 'none'}."
            )

    def with_training_config(self, name: str, config: TrainingConfig) -> "Catalog":
        """The same catalog with another training config under a name, e.g. one with ``--set`` applied."""
        return replace(self, training_configs={**self.training_configs, name: config})

    def blend(self, config: str) -> dict[str, float]:
        """Corpora of a training config with weights that sum to 1, sorted by corpus."""
        return self.training_config(config).blend


def folder_of(project: Project, kind: str) -> Path:
    """Folder of the YAML files of a kind of declaration."""
    folders = {
        "corpus": project.assets / "corpora",
        "model": project.assets / "models",
        "training_config": project.assets / "training_configs",
        "evaluation": project.assets / "evaluations",
        "profile": project.resources,
    }
    return folders[kind]


def load_catalog(project: Project) -> Catalog:
    """Read and validate every declaration, references between them included.

    What needs a model's architecture is checked by ``cross_checks``. For work on single declarations take
    ``usable_catalog``, which the problems of others do not stop.

    Raises:
        DeclarationError: with every problem of every file.
    """
    catalog, problems = read_catalog(project)
    if problems:
        raise DeclarationError(problems)
    return catalog


def read_catalog(project: Project) -> tuple[Catalog, list[Problem]]:
    """The declarations that are valid, and the problems of the others."""
    problems = _stray_folders(project)
    valid: dict[str, dict[str, Declaration]] = {kind: {} for kind in KINDS}
    declared: dict[str, set[str]] = {kind: set() for kind in KINDS}
    documents: dict[tuple[str, str], YamlDocument] = {}
    for kind, cls in KINDS.items():
        files, file_problems = list_declarations(folder_of(project, kind))
        problems += file_problems
        for name, path in files.items():
            declared[kind].add(name)
            try:
                documents[kind, name] = read_yaml(path)
                valid[kind][name] = validated(documents[kind, name], cls)
            except DeclarationError as error:
                problems += error.problems
    problems += _split_corpora(project, valid["corpus"], documents, declared["corpus"])
    catalog = Catalog(
        project,
        corpora=dict(sorted(valid["corpus"].items())),  # type: ignore[arg-type]
        models=valid["model"],  # type: ignore[arg-type]
        training_configs=valid["training_config"],  # type: ignore[arg-type]
        evaluations=valid["evaluation"],  # type: ignore[arg-type]
        profiles=valid["profile"],  # type: ignore[arg-type]
        documents=documents,
    )
    problems += name_clashes(declared, catalog.file_of)
    return catalog, problems + _broken_references(catalog, declared)


def _split_corpora(
    project: Project,
    corpora: dict[str, Declaration],
    documents: dict[tuple[str, str], YamlDocument],
    declared: set[str],
) -> list[Problem]:
    """Add the corpora of ``shard_sets`` beside those that have files of their own."""
    problems = []
    for origin, corpus in list(corpora.items()):
        assert isinstance(corpus, Corpus)
        document = documents["corpus", origin]
        for suffix, made in corpus.split().items():
            name = f"{origin}.{suffix}"
            if name in declared or len(name) > MAX_NAME:
                message = f"makes a corpus {name!r}, " + (
                    f"which {folder_of(project, 'corpus') / name}.yaml declares: take another suffix"
                    if name in declared
                    else f"whose name is longer than {MAX_NAME} characters: shorten it"
                )
                place: Loc = ("shard_sets", suffix)
                problems.append(Problem(document.path, document.line_of(place), dotted(place), message))
                continue
            corpora[name] = made
            documents["corpus", name] = document
            declared.add(name)
    return problems


def _stray_folders(project: Project) -> list[Problem]:
    """``assets/training_config/`` would otherwise be ignored in silence."""
    expected = {folder_of(project, kind).name for kind in KINDS if kind != "profile"}
    if not project.assets.is_dir():
        return [Problem(project.assets, 0, "", f"is missing: it holds {', '.join(sorted(expected))}")]
    return [
        Problem(entry, 0, "", f"is not a folder of declarations.{did_you_mean(entry.name, expected)}")
        for entry in sorted(project.assets.iterdir())
        if entry.name not in expected and not entry.name.startswith(".")
    ]


def _broken_references(catalog: Catalog, declared: Mapping[str, set[str]]) -> list[Problem]:
    """References to what no file declares, also those of a training config that has other problems.

    A file with problems of its own still counts as declared, and so does whatever it may split into.
    """
    broken = tuple(f"{corpus}." for corpus in declared["corpus"] - catalog.corpora.keys())
    problems: list[Problem] = []
    for (kind, config), document in catalog.documents.items():
        for referred, name, loc in _references(document.value) if kind == "training_config" else ():
            if name in declared[referred] or (referred == "corpus" and name.startswith(broken)):
                continue
            where = f"add {catalog.file_of(referred, name).relative_to(catalog.project.root)}, or change the name"
            message = f"{name!r} is not a declared {referred}: {where}.{did_you_mean(name, declared[referred])}"
            problems.append(catalog.problem(kind, config, loc, message))
    return problems


def _references(fields: Any) -> Iterator[tuple[str, str, Loc]]:
    """Kind, name and place of whatever the fields of a training config refer to; what is no name is validation's."""
    if not isinstance(fields, dict):
        return
    corpora, models = fields.get("corpora"), fields.get("models")
    profile = fields.get("profile", TrainingConfig.model_fields["profile"].default)
    references: list[tuple[str, Any, Loc]] = [("profile", profile, ("profile",))]
    references += [("corpus", name, ("corpora", name)) for name in (corpora if isinstance(corpora, dict) else ())]
    references += [("model", n, ("models", i)) for i, n in enumerate(models if isinstance(models, list) else ())]
    for kind, name, loc in references:
        if isinstance(name, str) and len(name) <= MAX_NAME and re.fullmatch(NAME_PATTERN, name):
            yield kind, name, loc
