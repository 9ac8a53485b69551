#!/bin/bash
# The full run on three nodes of eight GPUs: the first two train, the last one serves vLLM. Submit
# it from a clone that every node mounts, with chapter 18's environment active and the model there:
#   sbatch nbs/scale/slurm.sh
#SBATCH --job-name=grpo
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=1-0            # days-hours
#SBATCH --signal=B:TERM@600   # seconds before the end: more than one step and one save take
#SBATCH --requeue
#SBATCH --output=grpo-%j.log     # the log of all steps; a job that was queued again appends to it
#SBATCH --open-mode=append
##SBATCH --account=NAME
##SBATCH --partition=NAME

# On SIGTERM, at the time limit or to make room, the trainers save at the end of their step; then the
# job queues itself again and goes on from there. The trap is set first, so that it also holds while
# vLLM starts; the server has to stay while they train.
again= ; step= ; server=
trap 'again=1; kill -TERM ${step:-$server} 2>/dev/null' TERM

MODEL=${MODEL:-Qwen/Qwen2.5-32B-Instruct}   # on the hub, or a folder
OUTPUT=${OUTPUT:-runs/full}                 # on a file system that all nodes mount
PORT=${PORT:-8000}                          # of vLLM's server
MASTER_PORT=${MASTER_PORT:-29500}           # of the trainers
GPUS=${GPUS:-8}                             # of a node
# Two steps from 16 rows: under FSDP2, gradients that are added up over passes stay whole on every
# GPU, 65 GB for 32 billion weights.
BATCH='--per_device_train_batch_size 8 --steps_per_generation 2 --gradient_accumulation_steps 1'
export HF_HUB_OFFLINE=1                     # compute nodes often have no network
export OMP_NUM_THREADS=8                    # cores of a node for each of its GPUs
# since Slurm 22.05 srun does not take a task's cores from the job by itself
[ -n "$SLURM_CPUS_PER_TASK" ] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# where a node's first interface is not the fast one, and where NCCL does not find its InfiniBand:
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
# export NCCL_IB_HCA=mlx5
NODES=$((SLURM_NNODES-1))                   # that train
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
SERVER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
FSDP2=$(python -c 'import trl; print(trl.__path__[0])')/accelerate_configs/fsdp2.yaml
export MODEL OUTPUT PORT MASTER_PORT GPUS BATCH NODES MASTER SERVER FSDP2

# What is missing is said before anything is loaded.
# shellcheck disable=SC2016
srun --nodes="$NODES" --ntasks="$NODES" --exclude="$SERVER" bash -c '
    python nbs/scale/check_node.py --config nbs/scale/eight_gpus.yaml --model "$MODEL" $BATCH \
        --output_dir "$OUTPUT" --vllm_mode server --main_process_port "$MASTER_PORT" \
        --num_processes $((NODES*GPUS)) --num_machines "$NODES" --machine_rank "$SLURM_PROCID"
    ' || exit 1

# The server gets new weights from the trainers after every update (the development mode lets it), and
# its log-probs are those of the distribution that was sampled from. From vLLM 0.30 on, images need the
# last option.
srun --nodes=1 --ntasks=1 --nodelist="$SERVER" env VLLM_SERVER_DEV_MODE=1 \
    vllm serve "$MODEL" --port "$PORT" --tensor-parallel-size "$GPUS" --max-model-len 1024 \
    --weight-transfer-config '{"backend":"nccl"}' --logprobs-mode processed_logprobs \
    --max-logprobs -1 --enable-scale-out &
server=$!
until curl -sf "http://$SERVER:$PORT/health"; do
    [ -n "$again" ] && { scontrol requeue "$SLURM_JOB_ID"; exit 0; }
    kill -0 "$server" 2>/dev/null || exit 1   # vLLM has said why
    sleep 5
done

# The trainers: one task a node, which starts accelerate there. Its rank is read on the node, so the
# quotes are single. The signal goes to the trainers alone: accelerate would end them at once.
# shellcheck disable=SC2016
srun --nodes="$NODES" --ntasks="$NODES" --exclude="$SERVER" bash -c '
    trap "pkill -TERM -P \$run" TERM
    setsid accelerate launch --config_file "$FSDP2" --num_processes $((NODES*GPUS)) \
        --num_machines "$NODES" --machine_rank "$SLURM_PROCID" --main_process_ip "$MASTER" \
        --main_process_port "$MASTER_PORT" --rdzv_backend c10d \
        --fsdp_state_dict_type SHARDED_STATE_DICT \
        nbs/scale/full_run.py --config nbs/scale/eight_gpus.yaml --model "$MODEL" $BATCH \
        --output_dir "$OUTPUT" --vllm_mode server --vllm_server_host "$SERVER" --vllm_server_port "$PORT" &
    run=$!
    while kill -0 $run 2>/dev/null; do wait $run; code=$?; done
    exit $code' &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done
kill "$server" 2>/dev/null
[ -n "$again" ] && [ "$code" = 0 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
