#!/bin/sh
# sbatch job.sh: a quarter of a GPU with 16 shards, and of that at most 10 GiB.
#SBATCH --gres=shard:4
#SBATCH --gpumem=10Gi
srun python3 train.py
