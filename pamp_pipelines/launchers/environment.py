"""Environment variables and command line of a worker."""

import math
import os
import sys
from pathlib import Path

from pamp_pipelines.launchers.base import RUN_TOKEN, WorkerSpec

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environment(spec: WorkerSpec, token: str) -> dict[str, str]:
    """The caller's environment, thread limits, the profile's variables, then ``spec.env``; later ones win.

    A declared ``threads_per_process`` wins over the caller's OMP_NUM_THREADS; without one, the caller's stays, and
    where there is none the cores are shared out, since N ranks with N x cores threads run several times slower.
    """
    env = dict(os.environ)
    declared = spec.profile.threads_per_process
    threads = declared or max(1, cores() // (spec.processes or 1))
    for name in THREADS:
        if declared or name not in env:
            env[name] = str(threads)
    env |= {
        "PYTHONUNBUFFERED": "1",
        # the working directory is the run's: its folders must not shadow modules
        "PYTHONSAFEPATH": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(math.ceil(spec.profile.grace_s)),
    }
    return env | spec.profile.env | dict(spec.env) | {RUN_TOKEN: token}


def worker_command(spec: WorkerSpec, token: str, log_dir: Path) -> list[str]:
    """``python -m module job``, or torchrun over it with a rendezvous on a free port of this machine."""
    worker = ["-m", spec.module, str(spec.job)]
    if spec.processes is None:
        return [sys.executable, *worker]
    return [
        sys.executable,
        "-m",
        "pamp_pipelines.launchers.elastic",
        f"--nproc-per-node={spec.processes}",
        "--nnodes=1",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        # port 0 takes a free one; 127.0.0.1 spares a look-up of the host's own name, which need not resolve
        "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
        f"--rdzv-id={token}",
        f"--log-dir={log_dir}",
        "--redirects=3",
        *worker,
    ]
