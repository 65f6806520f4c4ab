"""What the assets get from outside: the project they belong to."""

from functools import cached_property
from pathlib import Path

import dagster as dg

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.usable import usable_catalog
from pamp_pipelines.lake.catalogue import open_lake
from pamp_pipelines.lake.events import Event
from pamp_pipelines.lake.store import Lake
from pamp_pipelines.project import Project


class ProjectResource(dg.ConfigurableResource):
    """The project's declarations and its lake, read when a run starts."""

    root: str
    """Folder with ``workspace.yaml`` and ``assets/``."""

    @property
    def project(self) -> Project:
        return Project(Path(self.root))

    @cached_property
    def catalog(self) -> Catalog:
        """What is right on disk now. Looking up a broken declaration raises what is wrong with it, and it alone."""
        return usable_catalog(self.project)[0]

    @property
    def lake(self) -> Lake:
        """A remote lake's catalogue is brought up to date first, unless this process did so a moment ago."""
        return open_lake(self.project, _warn)


def _warn(event: Event) -> None:
    dg.get_dagster_logger().warning(str(event.data["message"]))
