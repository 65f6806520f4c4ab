"""The model card of an export: what it is, what it was made of, under which licence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pamp_pipelines.conversion.job import ExportJob
from pamp_pipelines.conversion.licences import UNKNOWN
from pamp_pipelines.lake.atomic import write_text

CARD = "README.md"
BASE_CARD = "README.base.md"
"""The source model's own card: it describes other weights than the export's."""


def write_model_card(job: ExportJob, stats: dict[str, Any], target: Path) -> list[str]:
    """Writes `README.md`, and keeps the one of the template as `README.base.md`. Returns warnings for the user.

    stats: `architecture`, `parameters` and `dtypes` of the export.
    """
    if (target / CARD).is_file():
        (target / CARD).rename(target / BASE_CARD)
    licence = _licence(job.declaration)
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        *([f"license: {licence.lower()}"] if licence and licence != UNKNOWN else []),
        "---",
        "",
        f"# {job.name}",
        "",
        f"A {stats['architecture']} model of {stats['parameters']:,} parameters in {' and '.join(stats['dtypes'])}, "
        "exported from a Megatron checkpoint by pamp_pipelines. `manifest.json` names inputs and hashes every file.",
        "",
        *_facts(job, licence),
    ]
    if (target / BASE_CARD).is_file():
        lines += ["", f"The card of the model that it started from: [{BASE_CARD}]({BASE_CARD})."]
    write_text(target / CARD, "\n".join(lines) + "\n")
    unknown = ["the model"] if licence == UNKNOWN else []
    unknown += [f"corpus {name}" for name, text in _corpora(job.declaration).items() if text == UNKNOWN]
    if unknown:
        which = " and of ".join(unknown)
        return [f"{job.name}: the licence of {which} is declared unknown; find out before the export leaves the house"]
    return []


def _licence(declaration: dict[str, Any]) -> str | None:
    """The declared licence of the model; None where the export was not made from declarations."""
    declared = next(iter(declaration.get("model", {}).values()), None)
    return str(declared.get("licence", UNKNOWN)) if declared else None


def _corpora(declaration: dict[str, Any]) -> dict[str, str]:
    """Licence of each corpus that the weights were trained on."""
    return {name: str(corpus.get("licence", UNKNOWN)) for name, corpus in declaration.get("corpora", {}).items()}


def _facts(job: ExportJob, licence: str | None) -> list[str]:
    facts = [f"- Input `{ref.kind}`: id `{ref.id}`, content `{ref.content}`" for ref in job.inputs]
    for name, config in job.declaration.get("training_config", {}).items():
        facts.append(f"- Training config `{name}`: {config.get('description') or 'no description'}")
        for corpus, weight in config.get("corpora", {}).items():
            text = _corpora(job.declaration).get(corpus)
            facts.append(f"- Corpus `{corpus}`, weight {weight:g}" + (f", licence: {text}" if text else ""))
    facts.append(f"- Licence: {licence or 'that of the model it was made from'}")
    return facts
