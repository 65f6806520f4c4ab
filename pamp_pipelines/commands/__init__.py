"""The subcommands of ``pamp``: each builds a job, calls the stage function and says what came out. No stage logic."""
