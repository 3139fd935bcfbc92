"""The mpi backend: a world of MPI ranks, through mpi4py."""
