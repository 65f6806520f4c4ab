"""The declarations of a project as far as they are right: one broken file must not stop the work on all others."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pamp_pipelines.declarations.base import MAX_NAME, NAME_PATTERN
from pamp_pipelines.declarations.catalog import KINDS, Catalog, folder_of, read_catalog
from pamp_pipelines.declarations.files import identifier
from pamp_pipelines.declarations.name_clashes import name_clashes
from pamp_pipelines.errors import Problem
from pamp_pipelines.project import Project


def usable_catalog(project: Project) -> tuple[Catalog, list[Problem]]:
    """The catalog without what is broken, and all problems of the project.

    A broken declaration keeps its name (``Catalog.names``), and looking it up raises the problems of its file: it is
    there, and cannot be used until it is mended.
    """
    catalog, problems = read_catalog(project)
    broken = _by_declaration(project, problems)

    def sound[D](kind: str, declared: dict[str, D]) -> dict[str, D]:
        return {name: value for name, value in declared.items() if (kind, name) not in broken}

    usable = replace(
        catalog,
        corpora=sound("corpus", catalog.corpora),
        models=sound("model", catalog.models),
        training_configs=sound("training_config", catalog.training_configs),
        evaluations=sound("evaluation", catalog.evaluations),
        profiles=sound("profile", catalog.profiles),
        broken=broken,
        unnamed=_indistinct(catalog, broken),
    )
    return usable, sorted(set(problems))


def _by_declaration(project: Project, problems: Iterable[Problem]) -> dict[tuple[str, str], tuple[Problem, ...]]:
    """Problems of files that declare something, by kind and name; others, such as a stray folder's, concern nobody."""
    found: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kind = next((kind for kind in KINDS if folder_of(project, kind) == problem.file.parent), None)
        if kind is not None and _is_named(problem.file):
            found.setdefault((kind, problem.file.stem), []).append(problem)
    return {key: tuple(sorted(set(of_file))) for key, of_file in sorted(found.items())}


def _indistinct(catalog: Catalog, broken: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Broken declarations whose names Dagster cannot tell from those of others."""
    names = {kind: {*catalog.declared(kind), *(name for of_kind, name in broken if of_kind == kind)} for kind in KINDS}
    clashes = {clash.file for clash in name_clashes(names, catalog.file_of)}
    unnamed = set()
    for kind, of_kind in names.items():
        seen: dict[str, str] = {}
        for name in sorted(of_kind):
            alike = seen.setdefault(identifier(name), name) != name
            if alike or catalog.file_of(kind, name) in clashes:
                unnamed.add((kind, name))
    return frozenset(unnamed)


def _is_named(file: Path) -> bool:
    return file.suffix == ".yaml" and bool(re.fullmatch(NAME_PATTERN, file.stem)) and len(file.stem) <= MAX_NAME
