"""The options of `plan` that describe a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lightning_tgnn.algorithms.schedules.links import Links
from lightning_tgnn.algorithms.schedules.planner import Cluster
from lightning_tgnn.checks import check_int
from lightning_tgnn.commands.bench.comparison import RunOptions
from lightning_tgnn.commands.simulate.given_costs import read_link
from lightning_tgnn.files.whole import check_place


@dataclass(frozen=True)
class ClusterOptions:
    """Where to train, and what is measured on this machine.

    Args:
        machines: Of the cluster.
        devices: Processes that train on each of them.
        link: From a machine to the others, shared by its processes: MBIT, or MBIT:MILLISECONDS.
        local_link: Between the processes of a machine, the same.
        processes: That are measured at once on this machine; as many as devices if null, but two where there are
            several machines, so that something is exchanged.
        epochs: Of the recipe, counted as for one process.
        accelerator: "cpu", "gpu" or "auto".
        wide: Whether the table has all columns, also where it is wider than the terminal.
        output: Folder of the results, which are overwritten.
    """

    machines: int = 1
    devices: int = 2
    link: str = "10000:0.1"
    local_link: str = "80000:0.01"
    processes: int | None = None
    epochs: int = 10
    accelerator: str = "auto"
    wide: bool = False
    output: str = "runs/plan"

    def __post_init__(self) -> None:
        for name in ("machines", "devices", "epochs"):
            check_int(name, getattr(self, name), minimum=1, cure="give a number, for example 2")
        if self.processes is not None:
            check_int("processes", self.processes, minimum=1, cure="give a number, or leave it out")
        self.links  # noqa: B018 - which reads them

    @property
    def links(self) -> Links:
        """Between the ranks."""
        return Links(read_link("local_link", self.local_link), read_link("link", self.link))

    @property
    def run(self) -> RunOptions:
        """Where to measure."""
        at_once = self.processes or max(self.devices, min(2, self.machines * self.devices))
        return RunOptions(devices=at_once, num_nodes=1, accelerator=self.accelerator)

    def cluster(self, memory: float) -> Cluster:
        """Return where the plan is to run, given the bytes of node state that a machine has room for."""
        return Cluster(self.machines, self.devices, self.links, memory)

    @rank_zero_only
    def check_output(self) -> None:
        """Refuse a folder that cannot be written before anything is measured, which takes minutes.

        Raises:
            InvalidArgumentError: The results cannot be written.
        """
        check_place("output", Path(self.output) / "recipe.yaml")

    @property
    def start(self) -> str:
        """What stands before the command where several machines run it."""
        if self.machines == 1:
            return ""
        meeting = "--rdzv-backend c10d --rdzv-id plan --rdzv-endpoint HOST:29500"  # HOST is the first machine
        return f"torchrun --nnodes {self.machines} --nproc-per-node {self.devices} {meeting} --no-python "
