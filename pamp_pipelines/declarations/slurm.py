"""What a compute profile asks of Slurm."""

from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveFloat, PositiveInt, StringConstraints, field_validator

from pamp_pipelines.declarations.base import Declaration, Inconsistent

_DIRECTIVES = """
    acctg-freq bb begin comment contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot
    dependency distribution exclude exclusive gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket hint licenses
    mail-type mail-user mem mem-per-cpu mem-per-gpu mincpus network nice nodelist oversubscribe power prefer priority
    reservation sockets-per-node spread-job switches thread-spec threads-per-core tmp tres-bind tres-per-job
    use-min-nodes wckey"""
ALLOWED_DIRECTIVES = frozenset(word for line in _DIRECTIVES.splitlines() for word in line.split())
"""Options of sbatch that a profile may set. The launcher owns the others: it finds, ends and restarts the job by what
they say (job-name, output, nodes, ntasks, signal, requeue, …)."""

_LINE = r"^[^\x00-\x1f\x7f]*$"
Line = Annotated[str, StringConstraints(pattern=_LINE, min_length=1)]
"""One line: a newline would begin a directive or a command of its own."""


def _minutes(value: Any) -> Any:
    """YAML reads ``12:30:00`` as a number in base 60; the strict loader refuses it, an integer means minutes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Directive = Annotated[str, StringConstraints(pattern=r'^[^\x00-\x1f\x7f"\\]+$')]
"""A value of an sbatch directive: one line, without quotes and backslashes."""

TimeLimit = Annotated[
    str,
    BeforeValidator(_minutes, json_schema_input_type=str | int),
    StringConstraints(pattern=r"^([0-9]+(:[0-9]{2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}|UNLIMITED)$"),
]


class Container(Declaration):
    """A container for the worker, run by NVIDIA's pyxis plugin of srun (https://github.com/NVIDIA/pyxis)."""

    image: Directive
    """Image, as ``srun --container-image`` takes it: a registry's name or a squashfs file."""
    mounts: tuple[Directive, ...] = ()
    """``SOURCE:TARGET[:FLAGS]``. The lake, the project and its data must be at the same paths as outside."""
    writable: bool = False
    """Whether the container's root file system can be written to."""


class SlurmOptions(Declaration):
    """Where a job goes and what it gets. The nodes share the lake's file system with the submitting machine."""

    partition: Directive | None = None
    """Partition; default: the cluster's."""
    account: Directive | None = None
    """Account that pays."""
    qos: Directive | None = None
    """Quality of service."""
    constraint: Directive | None = None
    """Features that the nodes must have, e.g. ``h100&ib``."""
    gres: Directive | None = None
    """Generic resources of each node, e.g. ``gpu:8``."""
    time: TimeLimit | None = None
    """Time limit: minutes, or ``"12:00:00"``, ``"2-00:00"`` in quotes; default: the partition's. Before it, the job is
    asked to save; see `requeue`."""
    cpus_per_node: PositiveInt | None = None
    """Cores of a node; default: processes_per_node x threads_per_process."""
    directives: dict[str, Directive | int | bool] = {}
    """Further options of sbatch by long name, without dashes; true sets one that takes no value."""
    setup: tuple[Line, ...] = ()
    """Shell lines that prepare the environment on the first node before the worker starts, e.g. ``module load cuda``.
    They run as they stand: only trusted people may write profiles."""
    container: Container | None = None
    """Run the worker in a container."""
    python: Line | None = None
    """Python of the nodes or of the container, with pamp_pipelines installed; default: the submitting one's path."""
    requeue: bool = True
    """Whether the job starts again by itself after preemption, a failed node, or its time limit; training resumes."""
    poll_s: PositiveFloat = 15.0
    """Seconds between two questions to the controller."""

    @field_validator("directives")
    @classmethod
    def _only_known_directives(cls, directives: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
        problems = []
        for name, value in directives.items():
            if name not in ALLOWED_DIRECTIVES:
                allowed = ", ".join(sorted(ALLOWED_DIRECTIVES))
                problems.append((name, f"not allowed: one of {allowed}, without dashes"))
            elif value is False:
                problems.append((name, "leave it out instead of setting it to false"))
        if problems:
            raise Inconsistent(*problems)
        return directives
