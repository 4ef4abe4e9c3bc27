"""A schedule of groups of snapshots for tests: whole groups, or both halves of groups on pairs of ranks."""

from dataclasses import dataclass

from lightning_tgnn.types import GroupPart, Schedule, SnapshotTurn


@dataclass(frozen=True)
class DealtGroups(Schedule):
    """Every update has ``batch_size`` groups of each device, which has one or two ranks."""

    per_device: int = 1

    def check(self, layout, num_events):
        assert layout.ranks % self.per_device == 0

    def global_batch_size(self, layout, batch_size):
        return batch_size * layout.ranks // self.per_device

    def turns(self, layout, rank, over):
        size, devices = self.global_batch_size(layout, over.batch_size), layout.ranks // self.per_device
        device, half = divmod(rank, self.per_device)
        return [
            self._turn(range(start, min(start + size, over.num_events)), device, devices, half, layout, over)
            for start in range(0, over.num_events, size)
        ]

    def _turn(self, of, device, devices, half, layout, over):
        own = of[device::devices]
        parts = []
        for place in own:
            group = over.order[place]
            span = over.snapshots_of(group)
            load = len(span) if over.forward is None else over.forward[place].cumsum().searchsorted(5) + 1
            middle = min(load, len(span)) // 2 if self.per_device == 2 else 0
            parts.append(GroupPart(group, span[0], span[middle:] if half or self.per_device == 1 else span[:middle]))
        return SnapshotTurn(own, of, over.epoch, layout.ranks, parts=tuple(parts), groups=len(of))
