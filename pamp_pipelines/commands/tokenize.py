"""``pamp tokenize``: a declared corpus with a declared model's tokenizer, or any files with any tokenizer."""

from pathlib import Path

import click

from pamp_pipelines.commands.artifacts import artifact_outcome
from pamp_pipelines.commands.command import Number, Outcome, command, discover, open_catalog, open_lake, require
from pamp_pipelines.commands.progress import progress


class ManyInputs(click.Command):
    """Lets ``--input a b c`` mean ``--input a --input b --input c``, as a shell's glob writes it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        repeating = fresh = False
        for word in args:
            if word.startswith("-") and word != "-":
                repeating = fresh = word == "--input"
            elif repeating and not fresh:
                words.append("--input")
            elif repeating:
                fresh = False
            words.append(word)
        return super().parse_args(ctx, words)


@command("tokenize", cls=ManyInputs, short_help="Text to Megatron token shards.")
@click.argument("corpus", required=False)
@click.argument("model", required=False)
@click.option("--input", "inputs", multiple=True, metavar="F...", help="Files, folders, globs or URLs.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="tokenizer.json, SentencePiece .model, tiktoken vocabulary, or a folder.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--eod", metavar="TOKEN", help="Token that ends a document. Default: the tokenizer's eos token.")
@click.option("--format", "format_", type=click.Choice(["jsonl", "parquet", "text"]), help="Default: by suffix.")
@click.option("--text-field", default="text", show_default=True, help="Field or column that holds the text.")
@click.option(
    "--on-error", type=click.Choice(["stop", "drop"]), default="stop", show_default=True, help="Malformed rows."
)
@click.option("--held-out", type=Number(0, 1, max_open=True), default=0.0, help="Share of documents held out.")
@click.option(
    "--encoding",
    type=click.Choice(["utf-8", "gb18030", "utf-16", "utf-16-le", "utf-16-be"]),
    default="utf-8",
    show_default=True,
    help="Of the inputs.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes. Default: one for each core.")
@click.option("--profile", metavar="P", help="Compute profile in resources/: a cluster's makes an array job of it.")
def tokenize(
    project: Path | None,
    corpus: str | None,
    model: str | None,
    inputs: tuple[str, ...],
    tokenizer: Path | None,
    output: Path | None,
    eod: str | None,
    format_: str | None,
    text_field: str,
    on_error: str,
    held_out: float,
    encoding: str,
    workers: int | None,
    profile: str | None,
) -> Outcome:
    """Tokenize a declared CORPUS for a declared MODEL, or plain files without a project:

    \b
      pamp tokenize shakespeare shakespeare-tiny
      pamp tokenize --input corpus/*.jsonl --tokenizer tokenizer.json --output shards/

    The shards are Megatron's .bin/.idx. Empty texts are dropped and counted; each document ends with the EOD token.
    What a killed command had finished is used by the next one.
    """
    from pamp_pipelines.tokenization.build import tokenize as run
    from pamp_pipelines.tokenization.job import plain_tokenize_job, tokenize_job

    where = None
    if inputs or tokenizer or output:
        require(profile is None, "--profile is for a declared CORPUS and MODEL")
        require(corpus is None, "give either CORPUS and MODEL, or --input, --tokenizer and --output")
        require(bool(inputs), "--input is missing")
        if tokenizer is None or output is None:
            raise click.UsageError("--tokenizer and --output are needed with --input")
        from pamp_pipelines.declarations.corpus import HeldOut

        job = plain_tokenize_job(
            inputs,
            tokenizer,
            output,
            eod=eod,
            format=format_,  # type: ignore[arg-type]
            text_field=text_field,
            on_error=on_error,  # type: ignore[arg-type]
            held_out=HeldOut(fraction=held_out),
            encoding=encoding,  # type: ignore[arg-type]
            workers=workers,
        )
    else:
        if corpus is None or model is None:
            raise click.UsageError("give CORPUS and MODEL, or --input, --tokenizer and --output")

        found = discover(project)
        catalog = open_catalog(found)
        where = catalog.profile(profile) if profile else None
        job = tokenize_job(catalog, open_lake(found), corpus, model)
        job = job.model_copy(update={"workers": workers})
    from pamp_pipelines.lake.publication import published

    with progress() as on_event:
        return artifact_outcome(published(run(job, on_event, profile=where)))
