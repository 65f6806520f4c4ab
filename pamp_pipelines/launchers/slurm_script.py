"""The batch script of a worker, as a pure function of its spec.

Every argument is quoted for the shell and every directive is checked, so nothing that a declaration or a path holds can
become a command, except the profile's ``setup`` lines, which are meant to.

Slurm ends a job in several ways; the script makes one of them:

* Before the time limit Slurm signals the batch shell alone (``--signal=B:USR1``), which passes SIGTERM on to the steps
  and waits: training saves. With ``requeue`` it then puts the job back into the queue.
* On preemption Slurm sends SIGTERM to the steps and waits for their end; a worker that then ends in time would make the
  job a failed one. Exit status 143 (SIGTERM, from torchrun too) or 75 (stopped before its end) tells, and the shell
  puts the job back into the queue.
* `scontrol requeue` sends SIGTERM to everything; the shell only waits for the worker's end.
* squeue forgets a job after minutes and sacct is absent on many clusters, so the shell writes ``exit.json`` itself.

Each node runs one torchrun agent. Nodes meet at a port of the first one, the first free one from that on which follows
from the job's number: ranks are in Slurm's (topological) order of nodes, which torch's dynamic rendezvous would not
keep.
"""

import math
import re
import shlex
import sys
from pathlib import Path

from pamp_pipelines.declarations.slurm import ALLOWED_DIRECTIVES
from pamp_pipelines.errors import InputError
from pamp_pipelines.launchers.base import RUN_TOKEN, TASK, TASKS, WorkerSpec
from pamp_pipelines.launchers.environment import THREADS

EXIT = "exit.json"
"""Written at the end, of an array by each task in ``task<n>/``:
{"exit_code": of srun, "stopped": "" | "USR1" | "TERM", "restarts": n}."""
CANCEL = "cancel"
"""Written by the launcher before it ends a job, so that the job does not start again."""

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+&|*()\[\]~-]+")
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f"\\]')
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PORTS = (20_000, 12_000)
"""First port and number of ports for the rendezvous: below those that Linux gives to outgoing connections."""

# What the worker writes may be read by the group, whatever the umask of who submitted. srun takes it from SLURM_UMASK,
# which sbatch has set; Slurm has opened the job's output before.
_SHARED = """\
umask g+rx
export SLURM_UMASK="$(umask)"
chmod g+r /dev/stdout"""
_ALONE = 'job="$SLURM_JOB_ID" logs="$all"'
# SLURM_JOB_ID of one of the tasks is the number of the whole array
_ARRAY = """\
job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" logs="$all/task$SLURM_ARRAY_TASK_ID"
mkdir -p "$logs\""""
# Interrupted by a trap, `wait` returns early and is asked again; bash keeps the status of a job that ended meanwhile.
_WAIT = """\
stopped=
again=
trap 'again=1; stopped=USR1; scancel --signal=TERM "$job"' USR1
trap 'again=1; stopped=TERM' TERM
finish() {
  printf '{"exit_code": %d, "stopped": "%s", "restarts": %d}\\n' "$1" "$stopped" "$restarts" >"$logs/exit.tmp"
  mv "$logs/exit.tmp" "$logs/exit.json"
  exit "$1"
}"""
_END = """\
step=$!
again=1
while [ -n "$again" ]; do again=; wait "$step"; code=$?; done
# srun ends with 0 when Slurm takes the job away with a node; the signal that ends the job hits squeue as well. Without
# --states=all squeue has no line for a job that has ended, and no line says nothing good.
state=
if [ "$code" -eq 0 ]; then
  for attempt in 1 2 3 4; do
    if state=$(squeue --noheader --states=all --jobs="$job" --format=%T); then
      state=${state:-GONE}
      break
    fi
    sleep 1
  done
  [ "${state:-RUNNING}" = RUNNING ] || code=143
fi
if [ "$code" -eq 143 ] || [ "$code" -eq 75 ]; then stopped=${stopped:-TERM}; fi"""
# A busy controller is asked again. Once the job is back in the queue Slurm ends this shell, whose last status must then
# not be taken for the job's: it becomes a process that ends with the first signal and writes nothing.
_REQUEUE = """\
if [ -n "$stopped" ] && [ "$code" -ne 0 ]; then
  for attempt in 1 2 3 4; do
    [ ! -e "$all/cancel" ] || break
    if state=$(squeue --noheader --jobs="$job" --format=%T); then
      [ "$state" = RUNNING ] || break
      scontrol requeue "$job" && exec sleep 300
    fi
    sleep 5
  done
fi"""
_FREE_PORT = 'while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done'
"""Somebody else on the first node may listen at the job's port; this shell runs there."""


def nodes(spec: WorkerSpec) -> int:
    """Machines of a worker: one, unless it is started under torchrun."""
    return 1 if spec.processes is None else spec.profile.nodes


def batch_script(spec: WorkerSpec, token: str, log_dir: Path, name: str) -> str:
    """The script that sbatch gets.

    Args:
        spec: the worker; ``processes`` is the number of ranks on all nodes together.
        token: value of PAMP_RUN_TOKEN.
        log_dir: folder for the job's output and its ``exit.json``, on a file system of all nodes.
        name: the job's name.

    Raises:
        InputError: a value cannot be passed to sbatch safely, or the ranks do not fit the nodes.
    """
    options = spec.profile.slurm
    count = nodes(spec)
    lines = ["#!/bin/bash", *_directives(spec, log_dir, name), "", f"all={shlex.quote(str(log_dir))}"]
    lines += [_SHARED, _ALONE if spec.tasks is None else _ARRAY]
    lines += ["restarts=${SLURM_RESTART_COUNT:-0}", 'start="$logs/start$restarts"', 'rm -f "$logs/exit.json"']
    lines += [f'for node in $(seq 0 {count - 1}); do mkdir -p "$start/node$node"; done', _WAIT, ""]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in _environment(spec, token).items()]
    lines += [] if spec.tasks is None else [f'export {TASK}="$SLURM_ARRAY_TASK_ID" {TASKS}={spec.tasks}']
    lines += options.setup
    python = options.python or sys.executable
    if spec.before_restart:
        prepare = shlex.join([*_srun(spec, 1), python, "-m", spec.before_restart, str(spec.job)])
        lines += ["", f'if [ "$restarts" -gt 0 ]; then {prepare} || finish "$?"; fi']
    lines += ["", 'if [ -e "$all/cancel" ]; then finish 143; fi', *_worker(spec, python, count), _END]
    lines += [_REQUEUE] if options.requeue else []
    return "\n".join([*lines, 'finish "$code"', ""])


def _worker(spec: WorkerSpec, python: str, count: int) -> list[str]:
    srun = shlex.join(_srun(spec, count))
    output = '--output="${start//%/%%}/node%n/worker.log"'
    module = shlex.join(["-m", spec.module, str(spec.job)])
    if spec.processes is None:
        return [f"{srun} {output} {shlex.quote(python)} {module} &"]
    each, rest = divmod(spec.processes, count)
    if rest:
        raise InputError(f"{spec.processes} processes cannot be shared out evenly over `nodes: {count}`")
    first, ports = _PORTS
    # what differs from node to node goes into variables that torchrun reads
    on_node = (
        'export PET_NODE_RANK="$SLURM_NODEID" PET_LOG_DIR="$0/node$SLURM_NODEID" '
        'PET_MASTER_ADDR="$SLURM_LAUNCH_NODE_IPADDR"; exec "$@"'
    )
    agent = [python, "-m", "pamp_pipelines.launchers.elastic", f"--nnodes={count}", f"--nproc-per-node={each}"]
    return [
        f"port=$(({first} + SLURM_JOB_ID % {ports}))",
        _FREE_PORT,
        f'{srun} {output} bash -c {shlex.quote(on_node)} "$start" \\',
        f'  {shlex.join(agent)} --max-restarts=0 --master-port="$port" --redirects=3 {module} &',
    ]


def _srun(spec: WorkerSpec, count: int) -> list[str]:
    """One task on each node.

    ``--wait`` and not ``--kill-on-bad-exit``: after SIGTERM the first agent that ends must not take the one with it
    that still finishes the save.
    """
    container = spec.profile.slurm.container
    inside = []
    if container is not None:
        inside = [f"--container-image={container.image}"]
        inside += [f"--container-mounts={','.join(container.mounts)}"] if container.mounts else []
        inside += ["--container-writable"] if container.writable else []
    # since 22.05 srun does not take --cpus-per-task from sbatch
    size = [f"--nodes={count}", f"--ntasks={count}", f"--cpus-per-task={_cpus(spec)}"]
    wait = math.ceil(spec.profile.grace_s) + 5
    return ["srun", *size, "--export=ALL", "--kill-on-bad-exit=0", f"--wait={wait}", *inside]


def _environment(spec: WorkerSpec, token: str) -> dict[str, str]:
    """Variables over those of the submitting shell, which sbatch hands on."""
    threads = str(spec.profile.threads_per_process or 1)
    variables = {
        **dict.fromkeys(THREADS, threads),
        "PYTHONUNBUFFERED": "1",
        # the working directory is the run's: its folders must not shadow modules
        "PYTHONSAFEPATH": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(math.ceil(spec.profile.grace_s)),
        **spec.profile.env,
        **spec.env,
        RUN_TOKEN: token,
    }
    bad = [name for name in variables if not _VARIABLE.fullmatch(name)]
    if bad:
        raise InputError(f"env: {bad} are no names of environment variables")
    return variables


def _cpus(spec: WorkerSpec) -> int:
    profile = spec.profile
    if spec.tasks is not None:
        return profile.threads_per_process or 1
    processes = 1 if spec.processes is None else profile.processes_per_node
    return profile.slurm.cpus_per_node or processes * (profile.threads_per_process or 1)


def _directives(spec: WorkerSpec, log_dir: Path, name: str) -> list[str]:
    options = spec.profile.slurm
    save = math.ceil(spec.profile.grace_s)
    own: dict[str, str | int | bool | None] = {
        "job-name": name,
        "nodes": nodes(spec),
        "ntasks-per-node": 1,
        "cpus-per-task": _cpus(spec),
        "chdir": str(spec.run_dir),
        "array": None if spec.tasks is None else f"0-{spec.tasks - 1}",
        "output": str(log_dir).replace("%", "%%") + ("/batch.log" if spec.tasks is None else "/batch-%a.log"),
        "open-mode": "append",
        "export": "ALL",
        # Slurm looks at the clock once a minute
        "signal": f"B:USR1@{save + 60}",
        ("requeue" if options.requeue else "no-requeue"): True,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "gres": options.gres,
        "time": options.time,
    }
    unknown = sorted(options.directives.keys() - ALLOWED_DIRECTIVES)
    if unknown:
        raise InputError(f"slurm.directives: {unknown} are not allowed")
    values = {**own, **options.directives}
    return [_directive(key, value) for key, value in values.items() if value is not None]


def _directive(name: str, value: str | int | bool) -> str:
    if value is True:
        return f"#SBATCH --{name}"
    text = str(value)
    if _FORBIDDEN.search(text):
        raise InputError(f"Slurm's {name} {text!r}: newlines, quotes and backslashes cannot be passed to sbatch")
    return f"#SBATCH --{name}={text}" if _PLAIN.fullmatch(text) else f'#SBATCH --{name}="{text}"'
