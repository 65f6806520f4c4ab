#!/bin/bash
#SBATCH --job-name=pamp-c0ffee-m-c-v0001
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --chdir=/lake/runs/m/c/v0001
#SBATCH --output=/lake/runs/m/c/v0001/logs/start/batch.log
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --signal=B:USR1@360
#SBATCH --requeue
#SBATCH --partition=gpu
#SBATCH --account=llm
#SBATCH --qos=long
#SBATCH --constraint=h100&ib
#SBATCH --gres=gpu:8
#SBATCH --time=2-00:00:00
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --mail-user=a@b.org

all=/lake/runs/m/c/v0001/logs/start
umask g+rx
export SLURM_UMASK="$(umask)"
chmod g+r /dev/stdout
job="$SLURM_JOB_ID" logs="$all"
restarts=${SLURM_RESTART_COUNT:-0}
start="$logs/start$restarts"
rm -f "$logs/exit.json"
for node in $(seq 0 1); do mkdir -p "$start/node$node"; done
stopped=
again=
trap 'again=1; stopped=USR1; scancel --signal=TERM "$job"' USR1
trap 'again=1; stopped=TERM' TERM
finish() {
  printf '{"exit_code": %d, "stopped": "%s", "restarts": %d}\n' "$1" "$stopped" "$restarts" >"$logs/exit.tmp"
  mv "$logs/exit.tmp" "$logs/exit.json"
  exit "$1"
}

export OMP_NUM_THREADS=4
export MKL_NUM_THREADS=4
export OPENBLAS_NUM_THREADS=4
export NUMEXPR_NUM_THREADS=4
export RAYON_NUM_THREADS=4
export PYTHONUNBUFFERED=1
export PYTHONSAFEPATH=1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=300
export NCCL_DEBUG=WARN
export PAMP_RUN_TOKEN=c0ffee
module load cuda/13
ulimit -l unlimited

if [ "$restarts" -gt 0 ]; then srun --nodes=1 --ntasks=1 --cpus-per-task=32 --export=ALL --kill-on-bad-exit=0 --wait=305 '--container-image=reg.org#team/pamp:1' --container-mounts=/lake:/lake,/data:/data:ro /opt/pamp/bin/python -m pkg.restart /lake/runs/m/c/v0001/job.json || finish "$?"; fi

if [ -e "$all/cancel" ]; then finish 143; fi
port=$((20000 + SLURM_JOB_ID % 12000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
srun --nodes=2 --ntasks=2 --cpus-per-task=32 --export=ALL --kill-on-bad-exit=0 --wait=305 '--container-image=reg.org#team/pamp:1' --container-mounts=/lake:/lake,/data:/data:ro --output="${start//%/%%}/node%n/worker.log" bash -c 'export PET_NODE_RANK="$SLURM_NODEID" PET_LOG_DIR="$0/node$SLURM_NODEID" PET_MASTER_ADDR="$SLURM_LAUNCH_NODE_IPADDR"; exec "$@"' "$start" \
  /opt/pamp/bin/python -m pamp_pipelines.launchers.elastic --nnodes=2 --nproc-per-node=8 --max-restarts=0 --master-port="$port" --redirects=3 -m pkg.worker /lake/runs/m/c/v0001/job.json &
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
if [ "$code" -eq 143 ] || [ "$code" -eq 75 ]; then stopped=${stopped:-TERM}; fi
if [ -n "$stopped" ] && [ "$code" -ne 0 ]; then
  for attempt in 1 2 3 4; do
    [ ! -e "$all/cancel" ] || break
    if state=$(squeue --noheader --jobs="$job" --format=%T); then
      [ "$state" = RUNNING ] || break
      scontrol requeue "$job" && exec sleep 300
    fi
    sleep 5
  done
fi
finish "$code"
