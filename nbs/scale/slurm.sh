#!/bin/bash
# Eight nodes of eight GPUs: seven train, the last one serves vLLM. Submit it in a folder that every node sees:
#   sbatch slurm.sh
# A model and a data set must be in that folder's reach: `hf download` them on a node that has a network.
#SBATCH --job-name=grpo
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600   # seconds before the end: more than one step and one save take
#SBATCH --requeue
#SBATCH --open-mode=append
##SBATCH --account=NAME
##SBATCH --partition=NAME

# SIGTERM, at the time limit or to make room: the trainers save at the end of their step, then the job queues itself
# again and goes on from there. It is passed on from the first line, so also while the server still starts.
again= ; step= ; server=
trap 'again=1; kill -TERM ${step:-$server} 2>/dev/null' TERM   # while they train, the server has to stay

MODEL=Qwen/Qwen2.5-32B-Instruct
PORT=8000
export HF_HUB_OFFLINE=1 WANDB_MODE=offline   # compute nodes often have no network
export OMP_NUM_THREADS=8                     # cores of a node for each of its GPUs
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0   # where the nodes' first interface is not the fast one
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
SERVER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
export MASTER SERVER MODEL PORT

# The server: four copies, each on two GPUs. Weights come from the trainers after every update, and log-probs are
# those of the distribution that was sampled from.
srun --nodes=1 --ntasks=1 --nodelist="$SERVER" env VLLM_SERVER_DEV_MODE=1 \
    vllm serve "$MODEL" --port "$PORT" --tensor-parallel-size 2 --data-parallel-size 4 \
    --weight-transfer-config '{"backend":"nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1 &
server=$!
until curl -sf "http://$SERVER:$PORT/health"; do
    [ -n "$again" ] && { scontrol requeue "$SLURM_JOB_ID"; exit 0; }
    kill -0 "$server" 2>/dev/null || exit 1   # vLLM has said why
    sleep 5
done

# The trainers: one task a node, which starts accelerate there. Its rank is read on the node, so the quotes are
# single; the signal goes to the trainers alone, since accelerate would end them at once.
# shellcheck disable=SC2016
srun --nodes=7 --ntasks=7 --exclude="$SERVER" bash -c '
    trap "pkill -TERM -P \$run" TERM
    setsid grpo_nb trl --accelerate_config fsdp2 --num_processes 56 --num_machines 7 \
        --machine_rank "$SLURM_PROCID" --main_process_ip "$MASTER" --main_process_port 29500 --rdzv_backend c10d \
        --fsdp_state_dict_type SHARDED_STATE_DICT --fsdp_cpu_ram_efficient_loading true \
        --recipe gsm8k --model "$MODEL" --beta 0 --max_completion_length 1024 --num_generations 16 \
        --per_device_train_batch_size 8 --steps_per_generation 2 --gradient_accumulation_steps 1 \
        --use_vllm --vllm_mode server --vllm_server_host "$SERVER" --vllm_server_port "$PORT" \
        --save_steps 50 --save_total_limit 2 --output_dir runs/gsm8k --resume auto &
    run=$!
    while kill -0 $run 2>/dev/null; do wait $run; code=$?; done
    exit $code' &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done
kill "$server" 2>/dev/null
[ -n "$again" ] && [ "$code" = 0 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
