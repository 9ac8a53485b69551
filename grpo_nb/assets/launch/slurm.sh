#!/bin/bash
#SBATCH --job-name=grpo
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem=0
#SBATCH --time={minutes}
#SBATCH --signal=B:TERM@{grace}
#SBATCH --requeue
#SBATCH --open-mode=append
export MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HF_HUB_OFFLINE=1 WANDB_MODE=offline OMP_NUM_THREADS={threads}   # compute nodes often have no network
again=
{serve}trap 'again=1; kill -TERM $!' TERM
srun{where} bash -c {task} &
step=$!
while kill -0 $step 2>/dev/null; do wait $step; code=$?; done
[ -n "$again" ] && [ "$code" = 0 ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
