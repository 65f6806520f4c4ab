"""Dagster on top of the stages: the only package that imports dagster.

Assets build a job, call the stage function and report its artifact. Nothing that a stage needs lives here, so the CLI's
stage commands and the tests of the domain packages run without Dagster.
"""
