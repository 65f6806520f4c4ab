"""What `dagster dev` loads: the asset graph of the project found from PAMP_PROJECT or the current folder."""

from pamp_pipelines.orchestration.build import build_definitions
from pamp_pipelines.project import Project

defs = build_definitions(Project.discover())
