"""Start a host's supervisor by ssh, srun, mpirun or salloc.

`select` has one command for each launcher, and `remote_command` runs it. `slurm_job` asks Slurm for
a new job first.
"""
