//! `vgpu_spank.so`, Slurm's plugin: gives `srun`, `sbatch` and `salloc` the options `--gpumem`, `--gpucores` and
//! `--gpupriority`, and puts each task on a node under its job's limits by `vgpu slurm task`.
//!
//! Never decides what a job gets: the prolog has, from what slurmctld allocated. Never lets a task start that `vgpu
//! slurm task` did not permit.

#![deny(unsafe_code)]

mod border;
mod options;
mod permit;
mod release;
