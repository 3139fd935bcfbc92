"""Start a host's supervisor by ssh, srun, mpirun or a batch job.

`batch` submits a new job. `scheduler_step` starts hosts inside a job that runs already.
"""
