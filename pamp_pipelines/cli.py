"""The command line: ``pamp --help``."""

import os
import sys

import click

from pamp_pipelines.commands.check import check
from pamp_pipelines.commands.command import FAILED, INTERRUPTED, USAGE, print_json
from pamp_pipelines.commands.compare import compare
from pamp_pipelines.commands.convert import export_hf, import_hf
from pamp_pipelines.commands.evaluate import evaluate
from pamp_pipelines.commands.evict import evict
from pamp_pipelines.commands.inspect import inspect
from pamp_pipelines.commands.materialize import demo, materialize
from pamp_pipelines.commands.new import new
from pamp_pipelines.commands.plan import plan
from pamp_pipelines.commands.publish import publish
from pamp_pipelines.commands.reindex import reindex
from pamp_pipelines.commands.report import report
from pamp_pipelines.commands.schema import schema
from pamp_pipelines.commands.tokenize import tokenize
from pamp_pipelines.commands.trace import trace
from pamp_pipelines.commands.train import train
from pamp_pipelines.commands.verify import verify_checkpoint

COMMANDS = (
    *(check, demo, materialize, tokenize, import_hf, verify_checkpoint, plan, train, export_hf),
    *(evaluate, compare, report, publish, evict, inspect, trace, new, reindex, schema),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="pamp-pipelines")
def pamp() -> None:
    """Declarative pipelines for the full life of a language model.

    Every command takes --help, --json and --project. Results go to stdout, progress and errors to stderr.
    Exit status: 0 all went well, 1 something is wrong, 2 the command line is wrong.
    """


for _command in COMMANDS:
    pamp.add_command(_command)


def main() -> None:
    """Entry point of the ``pamp`` script. With ``--json`` a wrong command line, too, ends in a JSON object."""
    try:
        pamp.main(prog_name="pamp", standalone_mode=False)
    except BrokenPipeError:
        # Whoever read stdout is gone, e.g. `head`; without this, Python complains again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        if "--json" in sys.argv:
            print_json({"ok": False, "error": {"type": "UsageError", "message": error.format_message()}})
        sys.exit(USAGE)


if __name__ == "__main__":
    main()
