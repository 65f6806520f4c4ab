"""``pamp publish``: put into the store of a remote lake what is finished here and not there."""

from pathlib import Path

from pamp_pipelines.commands.command import Outcome, command, discover, open_lake
from pamp_pipelines.commands.progress import progress
from pamp_pipelines.errors import InputError


@command("publish", short_help="Put into the remote lake what is finished here and not there.")
def publish(project: Path | None) -> Outcome:
    """Upload every finished artifact that the lake at PAMP_LAKE does not have, inputs first.

    Stages publish what they make; this is for what a store that was away could not take, and for a lake that was local
    before: point PAMP_LAKE_CACHE at its folder. An upload that was cut goes on where it stood.
    """
    from pamp_pipelines.lake.publication import publish_all

    found = discover(project)
    if found.lake_url is None:
        raise InputError("PAMP_LAKE is no URL, so there is nowhere to publish to; set it, e.g. to s3://bucket/lake")
    lake = open_lake(found)
    with progress() as on_event:
        done = publish_all(lake.root, on_event)
    lines = [f"published  {place}" for place in done] or [f"{found.lake_url} has everything that is finished here."]
    return Outcome({"lake": found.lake_url, "published": [str(place) for place in done]}, lines)
