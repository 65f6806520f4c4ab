"""What the conversion has to say about a declared model's architecture, placed at its YAML file and field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.architectures import Config, architecture_of
from pamp_pipelines.conversion.layout import Layout, layout_of
from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.report import Report
from pamp_pipelines.declarations.source_checks import check_model
from pamp_pipelines.errors import InputError, Problem

_PREFIX = "config.json: "


def layout_in(file: Path, config: Config) -> Layout:
    """`layout_of` for a config.json that lies somewhere: what is wrong with it names the file.

    Raises:
        InputError: unknown architecture, or an impossible config.
    """
    try:
        return layout_of(config)
    except InputError as error:
        raise InputError(f"{file}: {str(error).removeprefix(_PREFIX)}") from error


def architecture_problems(catalog: Catalog, model: str, config: dict[str, Any]) -> list[Problem]:
    """Why the model cannot be converted, or else why Megatron cannot train it; empty where both can be done."""
    try:
        architecture = architecture_of(config)
        architecture.dimensions(config)
        architecture.megatron_arguments(config)
        reasons = architecture.unsupported(config)
    except InputError as error:
        reasons = [str(error).removeprefix(_PREFIX)]
    return [catalog.problem("model", model, _place(catalog, model, config, reason), reason) for reason in reasons]


def require_scratch(catalog: Catalog, model: str) -> None:
    """Raises DeclarationError with every problem of a from_scratch model that would come up while it is recorded."""
    report = Report()
    config = check_model(catalog, model, report)
    report.raise_errors()
    if config is not None:
        report.errors += architecture_problems(catalog, model, config)
    report.raise_errors()


def _place(catalog: Catalog, model: str, config: dict[str, Any], reason: str) -> tuple[str, ...]:
    if catalog.model(model).from_scratch is None:
        return ("hf",)
    field = next(iter(re.findall(r"\A\w+", reason)), "")
    return ("from_scratch", "config", field) if field in config else ("from_scratch", "config")
