"""The mpi backend: MPI's ranks as a world, through mpi4py.

`_join` forms the world's group, `_split` its parts; `_engine` has the operations. mpi4py is
imported only when the backend is asked for, as its import starts MPI.
"""
