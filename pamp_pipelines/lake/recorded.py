"""What Dagster was last told of each partition, in a small file each: ``recorded/<asset>/<partition>.recorded.json``.

A manifest says what an artifact is. It does not say which of several artifacts a partition showed, since when, and of
which declarations it counted as made: an artifact that is found again is not written again, and shards know no model.
With these files a lost Dagster home comes back as it was; without them only what the manifests say does.
"""

from pydantic import BaseModel, ConfigDict, ValidationError

from pamp_pipelines.errors import InputError
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.publication import publish_single
from pamp_pipelines.lake.store import Lake


class Recorded(BaseModel):
    """The newest materialisation of a partition.

    Attributes:
        id: of the artifact.
        content: of the artifact, which is the data version.
        at: Unix time in seconds.
        code_version: of the stage.
        declarations: asset of a declaration -> its name -> data version that the run read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    content: str
    at: float
    code_version: str
    declarations: dict[str, dict[str, str]] = {}


def write_recorded(lake: Lake, asset: str, partition: str | None, recorded: Recorded) -> None:
    """Replace what was recorded of a partition; in a remote lake for other machines too.

    Raises:
        OSError: the lake is not writable.
        StorageError, InputError: the store does not take it.
    """
    file = lake.recorded_file(asset, partition)
    write_text(file, recorded.model_dump_json(indent=2) + "\n")
    publish_single(file)


def read_recorded(lake: Lake, asset: str, partition: str | None) -> Recorded | None:
    """What was recorded; None where nothing was.

    Raises:
        InputError: the file is not readable; names it.
    """
    file = lake.recorded_file(asset, partition)
    try:
        return Recorded.model_validate_json(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{file}: not readable ({reason}). Delete it; the manifests then say what to show.") from None
