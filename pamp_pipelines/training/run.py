"""The training stage as the caller sees it: lease, resume, worker, kept checkpoints, verdict."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pamp_pipelines.conversion.checksums import damaged_payload
from pamp_pipelines.errors import InputError, RunDiverged, WorkerFailed
from pamp_pipelines.lake.artifact import Artifact
from pamp_pipelines.lake.atomic import write_text
from pamp_pipelines.lake.events import Event, OnEvent, event, ignore
from pamp_pipelines.lake.publication import Publisher
from pamp_pipelines.launchers import WorkerSpec, find_worker, launcher_for, run_worker
from pamp_pipelines.training.extend import seed
from pamp_pipelines.training.finished import find_finished
from pamp_pipelines.training.job import TrainJob, read_job
from pamp_pipelines.training.kept import read_record, record_import, record_path, record_saved, recorded_steps
from pamp_pipelines.training.lease import lease
from pamp_pipelines.training.outcome import write_manifest
from pamp_pipelines.training.requirements import require_megatron
from pamp_pipelines.training.restart import prepare
from pamp_pipelines.training.resume import require_same_run
from pamp_pipelines.training.saved import Saved
from pamp_pipelines.training.space import require_space
from pamp_pipelines.training.worker import EXIT_DIVERGED, EXIT_INPUT

WORKER = "pamp_pipelines.training.worker"
RESTART = "pamp_pipelines.training.restart"


def train(job: TrainJob, on_event: OnEvent = ignore, *, worker: str = WORKER) -> Artifact:
    """Train a version to its last iteration and return it; a finished one is returned at once.

    A version that was begun goes on from its newest complete checkpoint. Each kept checkpoint is announced by an event
    ``checkpoint`` with ``key``, ``step``, ``content`` and ``path`` after its record is written; those of earlier
    attempts are announced again, since whoever listened then may have died before it heard.

    Args:
        job: what to train and where.
        on_event: called in this thread with the worker's events, and with this stage's.
        worker: module that does the work.

    Raises:
        InputError: the worker refuses the job.
        RunDiverged: losses or gradients are not finite, and a retry cannot help.
        WorkerFailed: the worker failed, or ended before the last iteration; a retry resumes.
        WorkerCanceled: somebody asked the worker to stop.
        LeaseTaken: another process trains this version.
        ResumeRefused: the version's checkpoints are of another run.
        TooLittleSpace: there is no room for two saves.
        VerificationFailed: the version is finished, and a file of it is damaged.
    """
    if finished := find_finished(job.run_dir, job.id):
        _announce_all(job, on_event)
        return finished
    with lease(job.run_dir) as lock:
        require_same_run(job)
        if finished := find_finished(job.run_dir, job.id):
            _announce_all(job, on_event)
            return finished
        watched = _still_training(job, on_event)
        return _train(job, on_event, lock, worker, watched=watched)


def preview(job: TrainJob) -> str:
    """What `train` would start: a command line, or the script of a batch job."""
    spec = WorkerSpec(
        WORKER, job.run_dir / "job.json", job.run_dir, job.profile, job.world_size, before_restart=RESTART
    )
    return launcher_for(job.profile).preview(spec)


def _train(job: TrainJob, on_event: OnEvent, lock: int, worker: str, *, watched: bool) -> Artifact:
    """``watched``: the worker of an earlier attempt trains on; its files are not touched."""
    start = time.monotonic()
    job_file = job.run_dir / "job.json"
    saved = Saved(job.checkpoints_dir)
    if watched:
        resumed_from = saved.tracker()
    else:

        def warn(message: str) -> None:
            on_event(event("warning", message=message))

        seed(job, warn)
        # before anything is written, since what an earlier attempt left of its last save may fill the disk
        resumed_from = prepare(job, warn)
        write_text(job_file, job.model_dump_json(indent=2) + "\n")
    with Publisher() as publisher:
        keeper = _Keeper(job, on_event, publisher)
        keeper.begin()
        if watched or resumed_from != job.iterations:
            _run(job, job_file, keeper, lock, worker)
        keeper.catch_up()
    if (tracker := saved.tracker()) != job.iterations:
        raise WorkerFailed(
            f"{job.name}: the worker ended without an error at step {tracker or 0} of {job.iterations}, so the run is "
            f"not finished; run it again to resume. Log: {job.run_dir / 'logs'}",
            0,
        )
    return write_manifest(job, seconds=time.monotonic() - start, resumed_from=resumed_from)


def _run(job: TrainJob, job_file: Path, keeper: "_Keeper", lock: int, worker: str) -> None:
    require_space(job)
    if worker == WORKER and job.profile.launcher == "local":
        require_megatron("Training")
    try:
        run_worker(
            worker,
            job_file,
            job.run_dir,
            nproc=job.world_size,
            profile=job.profile,
            on_event=keeper.on_worker_event,
            hold=[lock],
            before_restart=RESTART,
        )
    except WorkerFailed as error:
        if error.exit_code == EXIT_INPUT:
            raise InputError(str(error)) from error  # a retry cannot help
        if error.exit_code == EXIT_DIVERGED:
            raise RunDiverged(f"{job.name} diverged; lower the learning rate or look at the data. {error}") from error
        raise


@dataclass
class _Keeper:
    """Records, announces and publishes kept checkpoints while the worker goes on, and deletes old resume points."""

    job: TrainJob
    on_event: OnEvent
    publisher: Publisher
    announced: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """Step 0 of an import, and what earlier attempts left."""
        job = self.job
        if 0 not in recorded_steps(job.run_dir):
            self._record_import()
        for step in recorded_steps(job.run_dir):
            self._require_readable(step)
        for step in recorded_steps(job.run_dir):
            self._announce(step)
        self.catch_up()

    def _record_import(self) -> bool:
        """False for a run from random weights."""
        source = next((ref for ref in self.job.inputs if ref.kind == "megatron_checkpoint"), None)
        if self.job.pretrained_checkpoint is None or source is None:
            return False
        record_import(self.job, self.job.pretrained_checkpoint / "release", source)
        return True

    def _require_readable(self, step: int) -> None:
        """Write a damaged record anew, where the checkpoint is here and whole."""
        saved = Saved(self.job.checkpoints_dir)
        try:
            read_record(self.job.run_dir, step)
        except InputError:
            if saved.complete(step) and damaged_payload(saved.dir(step)) is None:
                record_saved(self.job, step)
            elif step or not self._record_import():
                raise
            self._warn(f"{record_path(self.job.run_dir, step)}: was damaged, and is written anew from the checkpoint")

    def on_worker_event(self, event: Event) -> None:
        if event.kind != "checkpoint":
            self.on_event(event)
            return
        # what counts is what lies on the disk, and an earlier announcement may have been lost
        try:
            self.catch_up()
        except OSError as error:
            # a full disk must not end a run that can still train; the end of the run tries again
            self._warn(f"a checkpoint could not be recorded yet: {error}")

    def catch_up(self) -> None:
        """Record every complete checkpoint that is to be kept, then prune the others.

        What was recorded stays, also where the cadence of a later start does not name it: its export may be to come.
        """
        saved = Saved(self.job.checkpoints_dir)
        recorded = recorded_steps(self.job.run_dir)
        for step in self.job.cadence:
            if step not in recorded and saved.dir(step).is_dir() and saved.complete(step):
                record_saved(self.job, step)
                self._announce(step)
        saved.prune(self.job.checkpoint.keep_last, {*self.job.cadence, *recorded})
        for problem in self.publisher.problems():
            self._warn(f"a checkpoint could not be published yet: {problem}")

    def _announce(self, step: int) -> None:
        if step not in self.announced:
            self.announced.add(step)
            self.on_event(event("checkpoint", **_announcement(self.job, step)))
            self.publisher.add(record_path(self.job.run_dir, step))

    def _warn(self, message: str) -> None:
        self.on_event(event("warning", message=message))


def _announcement(job: TrainJob, step: int) -> Mapping[str, object]:
    manifest = read_record(job.run_dir, step)
    return {"key": f"{job.name}/{step:07d}", "step": step, "content": manifest.content, "path": manifest.location}


def _announce_all(job: TrainJob, on_event: OnEvent) -> None:
    for step in recorded_steps(job.run_dir):
        on_event(event("checkpoint", **_announcement(job, step)))


def _still_training(job: TrainJob, on_event: OnEvent) -> bool:
    """Whether a cluster still runs, or queues, what an earlier attempt of this job submitted.

    Any other worker that is left is ended: on this machine one whose caller and supervisor were both killed, or one
    that another profile started. It would write beside this one.
    """
    if (found := find_worker(job.run_dir)) is None:
        return False
    launcher, handle = found
    if launcher.outlives_caller and handle.launcher == job.profile.launcher and _submitted(job):
        return True
    on_event(event("warning", message=f"ending processes of an earlier attempt (handle {handle.id})"))
    launcher.cancel(handle)
    return False


def _submitted(job: TrainJob) -> bool:
    """Whether ``job.json``, which the worker has read, describes this run."""
    try:
        return bool(read_job(job.run_dir / "job.json").id == job.id)
    except InputError:
        return False
