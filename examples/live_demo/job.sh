#!/bin/sh
# One job of the live demo: job.sh PYTHON NAME SECONDS ITERATIONS FOLDER. Says when it has which nodes, and when it lets
# them go. A one-node job holds its node for so many seconds; one of several nodes trains for so many iterations.
say() { { date +%s.%N; echo "$2"; } > "$folder/$name.new" && mv "$folder/$name.new" "$folder/$name.$1"; }
name=$2 folder=$5
nodes=$(scontrol show hostnames)
say start "$nodes"
export MASTER_ADDR="${nodes%%
*}" GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
if [ "$SLURM_JOB_NUM_NODES" = 1 ]; then
    sleep "$3"
else
    srun --kill-on-bad-exit "$1" -m live_demo.train "$name" "$4" "$folder"
fi && say end "" || say failed ""
