"""The device of a predictor."""

from __future__ import annotations

import torch

from lightning_tgnn.checks import InvalidArgumentError, refusal


def usable_device(device: torch.device | str) -> torch.device:
    """Return a device that this process can compute on.

    Raises:
        InvalidArgumentError: It cannot.
    """
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()
    except Exception as error:  # torch raises one of another kind for each device that it has not been built for
        cure = "give 'cpu', or 'cuda' where torch.cuda.is_available() is True"
        raise InvalidArgumentError(refusal("device", "one that torch finds here", str(device), cure)) from error
    return chosen
