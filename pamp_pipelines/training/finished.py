"""A version that was trained to its end, with every checkpoint that it kept."""

from pathlib import Path

from pamp_pipelines.errors import InputError, VerificationFailed
from pamp_pipelines.lake.artifact import Artifact, read_manifest
from pamp_pipelines.lake.integrity import memory_of, require_intact, require_intact_artifact
from pamp_pipelines.lake.manifest import MANIFEST
from pamp_pipelines.lake.staging import looking
from pamp_pipelines.training.kept import read_record, record_path, recorded_steps


@looking()
def find_finished(run_dir: Path, id: str) -> Artifact | None:
    """The finished version with this ``id``; None where there is none, or a damaged manifest, which is written anew.

    Files that were compared before and not written since are not read again; of a remote lake, only what is here.

    Raises:
        VerificationFailed: a file of it, or of a kept checkpoint or its record, is damaged; training again would not
            replace it.
    """
    try:
        finished = Artifact(run_dir, read_manifest(run_dir / MANIFEST))
    except InputError:
        return None
    if finished.id != id:
        return None
    try:
        require_intact_artifact(finished)
        for step in recorded_steps(run_dir):
            record = record_path(run_dir, step)
            try:
                manifest = read_record(run_dir, step)
            except InputError as error:  # beside those that the manifest names, which were compared
                raise VerificationFailed(f"{error}\n{run_dir}: is damaged.") from None
            require_intact(run_dir, manifest, memory_of(record))
    except VerificationFailed as error:
        damage = "\n".join(str(error).splitlines()[:-1])  # the last line is about artifacts that can be made again
        raise VerificationFailed(
            f"{damage}\n{run_dir}: a finished run is not trained again. Put what is damaged back from a copy, or train "
            "another version with `pamp train MODEL CONFIG --fresh`."
        ) from None
    return finished
