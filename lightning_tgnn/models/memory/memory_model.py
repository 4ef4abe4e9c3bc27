"""The stages of a memory-based temporal GNN: what a model of a user's own has to define, and what it is given."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.models.stream_model import StreamModel, check_result
from lightning_tgnn.types import (
    EventBatch,
    RootBatch,
    SampledRoots,
    StateRows,
    StateSpec,
    StateUpdate,
    StreamInfo,
    UpdatedRows,
)

SAMPLED_ROOTS: tuple[SampledRoots, ...] = ("none", "events", "all")


class MemoryModel(StreamModel):
    """Base of the memory-based temporal GNNs; subclass it for a model of your own.

    Every node has a row of state: a memory, and a mailbox of the mails that its latest events sent. A step reads the
    rows of the batch's distinct nodes, takes their mails into the memory (`update_memory`), embeds the batch's roots
    (`embed`), and writes the memory of its sources and destinations and a mail for each receiver (`mail`). A subclass
    defines the first two methods; the third has a default. The strategy decides in which order they are called.

    Each of the three methods works row by row: its result for a row must not depend on which or how many other rows are
    there, because ranks have different rows, and a rank may have none. Gradients reach the weights, never the rows.

    Args:
        info: What the stream looks like.
        memory_dim: Width of the memory, d_mem.
        embedding_dim: Width of the result of `embed`, d_emb.
        sampled_roots: Whose past neighbours are sampled. ``"all"``: neighbours of every root, which `embed` finds in
            the batch. ``"none"``: none. ``"events"``: neighbours of the sources and destinations, which receive the
            mails of the events, too, and are not in the batch.
        mailbox_size: Mails kept per node, M.
        mail_dim: Width of the result of `mail`, d_mail, if `mail` is overridden.

    Attributes:
        spec: Widths of a row of node state.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work.
    """

    past_in_tgb = "batch"

    def __init__(
        self,
        info: StreamInfo,
        *,
        memory_dim: int,
        embedding_dim: int,
        sampled_roots: SampledRoots = "all",
        mailbox_size: int = 1,
        mail_dim: int | None = None,
    ) -> None:
        sizes = {"memory_dim": memory_dim, "embedding_dim": embedding_dim, "mailbox_size": mailbox_size}
        for name, size in sizes.items():
            check_int(name, size, minimum=1, cure="give a width, for example 100; a mailbox may have 1")
        check_choice("sampled_roots", sampled_roots, SAMPLED_ROOTS)
        raw, raw_dim = self.sends_raw_mails, 2 * memory_dim + info.edge_feature_dim
        if mail_dim is None:
            mail_dim = raw_dim
        check_int("mail_dim", mail_dim, minimum=1, cure="give the width of what mail returns")
        if raw and mail_dim != raw_dim:
            cure = "override mail, which makes mails of another width"
            raise InvalidArgumentError("mail_dim", "left out beside the mail of MemoryModel", mail_dim, cure)
        own_half = raw and mailbox_size == 1 and sampled_roots != "events"
        spec = StateSpec(info.num_nodes, memory_dim, mail_dim, mailbox_size, own_half, event_features=raw)
        super().__init__(spec, embedding_dim=embedding_dim, sampled_roots=sampled_roots)

    @property
    def sends_raw_mails(self) -> bool:
        """Whether a mail is two memories and the features of its event, of which a strategy need not send all."""
        return type(self).mail is MemoryModel.mail and type(self).make_mails is MemoryModel.make_mails

    def update_memory(self, rows: StateRows) -> Tensor:
        """Return the memory of rows with their mails taken in.

        Args:
            rows: The U rows that have a mail; with several slots in the mailbox, slot ``k`` holds one where
                ``k < rows.mail_count``.

        Returns:
            float [U, d_mem].
        """
        raise NotImplementedError(f"{type(self).__name__}.update_memory")

    def embed(self, updated: UpdatedRows, batch: RootBatch) -> Tensor:
        """Return the embeddings of the roots.

        Args:
            updated: Memory [U, d_mem] of ``batch.nodes`` after their mails, with gradient, and its time [U].
            batch: Where each root and each of its neighbours is among the rows: ``root_index`` [R] and
                ``neighbor_index`` [R, K], where ``neighbor_mask``; with times, edge features and node features.

        Returns:
            float [R, d_emb].
        """
        raise NotImplementedError(f"{type(self).__name__}.embed")

    def mail(self, own: Tensor, other: Tensor, features: Tensor) -> Tensor:
        """Return the mails of one side of P events, without gradient: by default all three side by side.

        A model that mails something else overrides it and says by ``mail_dim`` how wide that is. Weights that are to
        learn belong into `update_memory`: no gradient comes back to when a mail was sent.

        Args:
            own: float32 [P, d_mem], memory of the node on this side.
            other: float32 [P, d_mem], memory of the node on the other.
            features: float32 [P, d_edge], of the event.

        Returns:
            float [P, d_mail].
        """
        return torch.cat([own, other, features], dim=-1)

    def apply_mail(self, rows: StateRows) -> UpdatedRows:
        """Return the memory of the batch's distinct nodes with their pending mails taken in; others keep theirs."""
        arrived = (rows.mail_count > 0).nonzero().squeeze(1)
        pending = StateRows(*(table.index_select(0, arrived) for table in vars(rows).values()))
        memory = self.update_memory(pending)
        check_result(f"{type(self).__name__}.update_memory", memory, pending.memory.shape)
        return UpdatedRows(
            rows.memory.index_copy(0, arrived, memory.float()),
            rows.memory_time.index_copy(0, arrived, pending.mail_time.amax(-1)),
        )

    @torch.no_grad()
    def make_mails(self, updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes: the memory of its events' nodes, and a mail per receiver."""
        return self.update_with(self.mails_of(updated, batch), updated, batch)

    @torch.no_grad()
    def mails_of(self, updated: UpdatedRows, batch: EventBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mails of a batch, float32 [P, d_mail], and time and event of each, float64 [P] and int64 [P]."""
        count = len(batch)
        memory = updated.memory.detach().float()
        entries = batch.candidate_index[: 2 * count]
        sides = max(count, 1)  # a rank may have no event of a last, short batch
        own, other = entries[batch.mail_source], entries[(batch.mail_source + sides) % (2 * sides)]
        event = batch.mail_source % sides
        features = memory.new_empty(len(event), 0)
        if batch.edge_features.shape[-1]:
            features = batch.edge_features[batch.event_edge[event]]
        mails = self.mail(memory[own], memory[other], features)
        check_result(f"{type(self).__name__}.mail", mails, (len(event), self.spec.mail_dim))
        return mails.float(), batch.time[event], batch.events[event]

    def update_with(self, mails: tuple[Tensor, Tensor, Tensor], updated: UpdatedRows, batch: EventBatch) -> StateUpdate:
        """Return what the batch writes, given what `mails_of` returns."""
        sent, time, event = mails
        return StateUpdate(
            nodes=batch.nodes[: batch.num_written],
            memory=updated.memory.detach()[: batch.num_written].float(),
            memory_time=updated.memory_time[: batch.num_written],
            mail_nodes=batch.mail_nodes,
            mails=sent,
            mail_time=time,
            mail_event=event,
            position=batch.shared.position,
            changed=batch.shared.changed,
            together=batch.shared.together if self.spec.event_features else None,
        )
