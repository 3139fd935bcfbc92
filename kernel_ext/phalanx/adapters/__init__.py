"""Run the distributed code of other frameworks on the ranks of Phalanx."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MLX_LIBRARY_VARIABLE", "mlx_library"]

MLX_LIBRARY_VARIABLE = "MLX_MPI_LIBNAME"


def mlx_library() -> Path | None:
    """Return the library that MLX loads as its MPI.

    None if this build has none.

    Examples
    --------
    >>> mlx_library().name
    'libphalanx_mlx_mpi.so'
    """
    path = Path(__file__).parent / "libphalanx_mlx_mpi.so"
    return path if path.exists() else None
