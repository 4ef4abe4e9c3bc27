"""The process groups of a layout, made once and in one order on all ranks."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from lightning_tgnn.types import RankLayout


class ProcessGroups:
    """Makes every group of every family of a layout; all ranks have to make them together.

    Args:
        layout: Of all ranks.
        rank: This rank.
        timeout: How long a rank waits for the others; None takes that of torch.

    Attributes:
        layout: Of all ranks.
    """

    def __init__(self, layout: RankLayout, rank: int, timeout: timedelta | None = None) -> None:
        self.layout = layout
        self._own: dict[str, dist.ProcessGroup] = {}
        if layout.ranks == 1:
            return
        for family, groups in layout.families.items():
            for ranks in (group for group in groups if len(group) > 1):
                group = dist.new_group(list(ranks), timeout=timeout)
                if rank in ranks:
                    self._own[family] = group

    def of(self, family: str) -> dist.ProcessGroup | None:
        """Return this rank's group of a family; None where it is alone.

        Raises:
            InvalidArgumentError: There is no such family.
        """
        self.layout.group_of(family, 0)  # refuses what it does not know
        return self._own.get(family)
