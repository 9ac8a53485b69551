export SERVER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
srun --nodes=1 --ntasks=1 --nodelist="$SERVER" env {server} &
server=$!
until curl -sf http://$SERVER:{port}/health; do
    kill -0 $server 2>/dev/null || exit 1   # vLLM has said why
    sleep 5
done
