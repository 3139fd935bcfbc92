"""Divide a dataset among the ranks, and seed their random generators."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from phalanx.distributed.bootstrap.init import init
from phalanx.distributed.group.group import Group
from phalanx.distributed.operations.reductions import all_max

_T = TypeVar("_T")
_END = object()
_REMAINDERS = ("repeat", "drop", "keep")


class Shard(Sequence[Any]):
    """The samples of one rank in one epoch; made by `shard`.

    ``indices`` are the places of its samples in the dataset.
    """

    def __init__(self, dataset: Any, indices: NDArray[np.int64]) -> None:
        self._dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.indices)

    def __getitem__(self, which: Any) -> Any:
        """Return a sample, or for a slice a `Shard` of these samples."""
        if isinstance(which, slice):
            return Shard(self._dataset, self.indices[which])
        return self._dataset[int(self.indices[operator.index(which)])]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the samples."""
        return (self._dataset[int(index)] for index in self.indices)

    def __repr__(self) -> str:
        """Show how many samples it has."""
        return f"<phalanx.nn.Shard of {len(self)} of {len(self._dataset)} samples>"


def shard(
    dataset: Any,
    seed: int = 0,
    epoch: int = 0,
    *,
    group: Group | None = None,
    shuffle: bool = True,
    remainder: Literal["repeat", "drop", "keep"] = "repeat",
) -> Shard:
    """Return this rank's part of a dataset.

    Parameters
    ----------
    dataset : sequence
        Anything with a length and items; the same on every rank.
    seed, epoch : int, optional
        Choose the order of the samples. All ranks pass the same numbers.
    group : Group, optional
        Ranks that share the dataset; ``None``: all.
    shuffle : bool, optional
        False keeps the dataset's order.
    remainder : {"repeat", "drop", "keep"}, optional
        If the ranks do not divide the samples: ``"repeat"`` gives some ranks a sample of the
        beginning once more, ``"drop"`` leaves the last samples out. With both, all ranks have
        equally many. ``"keep"`` gives each sample to one rank: some ranks have one more.

    Returns
    -------
    Shard
        A sequence of samples: those at ``rank``, ``rank + size``, ... of the epoch's order.

    Raises
    ------
    ValueError
        The dataset is empty, ``seed`` or ``epoch`` is negative, or ``remainder`` is unknown.

    See Also
    --------
    seed : seeds the random generators of a rank.

    Notes
    -----
    Cost: no communication; 8 bytes for each sample of the dataset while the order is drawn.

    Examples
    --------
    >>> import phalanx as px
    >>> list(px.nn.shard("abc", shuffle=False))
    ['a', 'b', 'c']
    """
    group = init() if group is None else group
    n_samples = len(dataset)
    if not n_samples:
        msg = "shard: the dataset is empty"
        raise ValueError(msg)
    if seed < 0 or epoch < 0:
        msg = f"shard: seed and epoch must be 0 or more, not {seed} and {epoch}"
        raise ValueError(msg)
    if remainder not in _REMAINDERS:
        msg = f"shard: remainder must be one of {', '.join(_REMAINDERS)}, not {remainder!r}"
        raise ValueError(msg)
    order = np.arange(n_samples)
    if shuffle:
        np.random.default_rng((seed, epoch)).shuffle(order)
    size = group.size()
    if remainder == "drop":
        order = order[: n_samples - n_samples % size]
    elif remainder == "repeat":
        order = np.resize(order, -(-n_samples // size) * size)
    return Shard(dataset, order[group.rank() :: size].copy())


def all_batches(batches: Iterable[_T], *, group: Group | None = None) -> Iterator[_T | None]:
    """Iterate until every rank has had all its batches.

    Parameters
    ----------
    batches : iterable
        The batches of this rank. Ranks may have different numbers of batches.
    group : Group, optional
        Ranks that train together; ``None``: all.

    Yields
    ------
    object or None
        A batch; None on a rank that has no more, as long as another rank has one. All ranks get
        equally many items.

    Raises
    ------
    RankFailure
        A rank was lost.

    See Also
    --------
    average_gradients : with ``weights=0`` a rank without a batch takes part and adds nothing.
    shard : gives all ranks equally many samples.

    Notes
    -----
    Cost: an `all_max` of 8 bytes for each item.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> for batch in px.nn.all_batches([np.ones(2), np.ones(1)]):
    ...     n = 0 if batch is None else len(batch)
    ...     gradient = np.zeros(3) if batch is None else np.full(3, batch.mean())
    ...     mean = px.nn.average_gradients(gradient, weights=n)
    >>> mean
    array([1., 1., 1.])
    """
    iterator = iter(batches)
    while True:
        batch = next(iterator, _END)
        if not all_max(int(batch is not _END), group=group):
            return
        yield None if batch is _END else cast("_T", batch)


def seed(number: int, *, per_rank: bool = True, group: Group | None = None) -> np.random.Generator:
    """Seed the random generators of this rank.

    Parameters
    ----------
    number : int
        Seed, 0 or more.
    per_rank : bool, optional
        True gives each rank random numbers of its own, for example for dropout. False gives all
        ranks the same, for example for a model's first parameters.
    group : Group, optional
        Ranks that get different numbers; ``None``: all.

    Returns
    -------
    numpy.random.Generator
        A new generator with this seed.

    Raises
    ------
    ValueError
        ``number`` is negative.

    See Also
    --------
    shard : takes a seed of its own, the same on all ranks.

    Notes
    -----
    Seeds `random`, `numpy.random`, and torch and MLX if they are loaded. Cost: no communication.

    Examples
    --------
    >>> import phalanx as px
    >>> a, b = px.nn.seed(7).random(), px.nn.seed(7).random()
    >>> a == b
    True
    """
    if number < 0:
        msg = f"seed: the number must be 0 or more, not {number}"
        raise ValueError(msg)
    rank = (init() if group is None else group).rank() if per_rank else -1
    sequence = np.random.SeedSequence((number, rank + 1))
    for_random, for_numpy, for_torch, for_mlx = (int(word) for word in sequence.generate_state(4))
    random.seed(for_random)
    np.random.seed(for_numpy)  # noqa: NPY002 - libraries draw from this generator
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(for_torch)
    if (mx := sys.modules.get("mlx.core")) is not None:
        mx.random.seed(for_mlx)
    return np.random.default_rng(sequence)
