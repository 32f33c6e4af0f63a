#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --time=01:00:00
#
# sbatch job.sh: mkrun takes hosts and slots from the job, and Slurm starts one agent on each node.
mkrun launch --batch -- python train.py

# The same where srun has to be the one that starts everything: one mkrun on each node, of which the first launches and
# the others are its agents. They meet in a file that only you may read, in a folder that all nodes see.
#
#   srun --ntasks-per-node=1 mkrun launch --join "$HOME/mkrun.$SLURM_JOB_ID" --ppn 8 -- python train.py
