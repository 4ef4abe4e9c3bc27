"""The message that is made of a mail when its node takes it in (TGN, section 3.1, eqs. 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.models.memory.memory_model import check_result
from lightning_tgnn.types import StateRows

MessageFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From memory [P, d_mem] of a mail's own node, of the other node and features [P, d_edge] to messages [P, width]."""

_CURE = "give the class of a module that is called with two memories and the features of the event"


class Message(nn.Module):
    """Makes messages of mails by a function of a user's own.

    What is kept and sent is the mail itself, the memories of both ends and the event's features (the raw message of
    TGN, section 3.2). So the weights of the function learn from the loss of the batch that reads the mail, and a
    strategy saves of a mail what it saves without such a function.

    Args:
        build: Called with the widths of memory and edge features, returns the function, say a module.
        memory_dim: Width of the memory.
        edge_dim: Width of the edge features, 0 without.

    Attributes:
        width: Of a message, learnt from a trial.

    Raises:
        InvalidArgumentError: ``build`` returns no function, or the function does not return a row per mail.
    """

    def __init__(self, build: Callable[[int, int], MessageFunction], memory_dim: int, edge_dim: int) -> None:
        super().__init__()
        self._widths = [memory_dim, memory_dim, edge_dim]
        requirement = f"what builds a function, called with memory_dim={memory_dim} and edge_dim={edge_dim}"
        try:
            self.function = build(memory_dim, edge_dim)
        except TypeError as error:
            raise InvalidArgumentError("message", requirement, str(error), _CURE) from error
        if not callable(self.function):
            raise InvalidArgumentError("message", requirement, type(self.function).__name__, _CURE)
        self.width = self._width_of_trial()

    @torch.no_grad()
    def _width_of_trial(self) -> int:
        training = self.training
        self.eval()  # dropout would draw from the generator of the run
        count = 3
        try:
            made = self.function(*(torch.zeros(count, width) for width in self._widths))
        except (TypeError, RuntimeError, ValueError, IndexError) as error:
            requirement = f"called with memory, memory and features of shapes {[[count, w] for w in self._widths]}"
            raise InvalidArgumentError("the function of message", requirement, str(error), _CURE) from error
        self.train(training)
        width = made.shape[-1] if isinstance(made, Tensor) and made.dim() == 2 else 1
        check_result("message", made, (count, width))
        return width

    def forward(self, rows: StateRows) -> StateRows:
        """Return the rows with messages [U, M, width] in the place of the mails; 0 in empty slots."""
        slots = rows.mails.shape[1]
        filled = torch.arange(slots, device=rows.mails.device) < rows.mail_count.unsqueeze(1)
        made = self.function(*rows.mails[filled].split(self._widths, dim=-1))
        check_result("message", made, (int(filled.sum()), self.width))
        messages = rows.mails.new_zeros(*filled.shape, self.width)
        return replace(rows, mails=messages.index_put((filled,), made.float()))
