"""What a batch takes while it is made, against what the machine has left."""

from __future__ import annotations

from lightning_tgnn.checks import InvalidArgumentError, refusal
from lightning_tgnn.data.batches.sampling import EventSampler
from lightning_tgnn.files.memory import available_memory, gigabytes

_INDEX, _TIME, _FLAG, _FEATURE = 8, 8, 1, 4


def check_batch_fits(sampler: EventSampler, batch_size: int) -> None:
    """Refuse batches that take more memory than there is, before the first is made.

    Args:
        sampler: Draws for them.
        batch_size: Events of one.

    Raises:
        InvalidArgumentError: They do.
    """
    needed, available = batch_bytes(sampler, batch_size), available_memory()
    if available is not None and needed > available:
        roots = f"{batch_size:,} events with {sampler.roots_per_event} roots each"
        received = f"{sampler.num_neighbors:,} for {roots}: at least {gigabytes(needed)}, {gigabytes(available)} free"
        cure = "lower num_neighbors, batch_size or num_eval_negatives"
        requirement = "few enough that a batch fits into memory"
        raise InvalidArgumentError(refusal("num_neighbors", requirement, received, cure))


def batch_bytes(sampler: EventSampler, batch_size: int) -> int:
    """Return how many bytes `EventSampler.sample` and `BatchOrganizer.organize` hold at once, at least.

    Neighbours have their places whether there are as many or not. Where a model reads them, a place is an event number
    (as drawn, and in the order of the roots), a mask, a node, its position, a time, and with edge features the position
    of their row. Where they only receive mails, it is the entry found, a mask, an event and a node. Rows of features
    beyond those of the batch's own events depend on what is drawn and are left out.
    """
    store = sampler.store
    places = batch_size * sampler.roots_per_event * sampler.num_neighbors
    if sampler.sampled_roots == "all":
        place = 4 * _INDEX + _FLAG + _TIME + (_INDEX if store.edge_feature_dim else 0)
    else:
        place = 3 * _INDEX + _FLAG
    return places * place + batch_size * store.edge_feature_dim * _FEATURE
