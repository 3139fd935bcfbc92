"""Start a host's supervisor by ssh, srun, mpirun or sbatch.

`batch` submits a new job. `scheduler_step` starts hosts by srun, also within a job, or by mpirun.
"""
