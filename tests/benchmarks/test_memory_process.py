"""Rows per second that a memory process reads and writes for 1, 2 and 4 ranks, against a store in one process.

In turns in one start of four processes. Every rank reads and writes the rows of a batch in a turn; nothing is computed.
"""

import time
from statistics import median

import pytest
import torch
import torch.distributed as dist

from lightning_tgnn.comm import ProcessGroups
from lightning_tgnn.state import LocalStateStore, ServedStateStore
from lightning_tgnn.types import RankLayout, StateSpec, StateUpdate
from tests.multiprocess.ranks import run_ranks

SPEC = StateSpec(num_nodes=9_228, memory_dim=100, mail_dim=372, mailbox_size=1, own_half=True)  # TGN on Wikipedia
READ, WRITTEN = 2_000, 400  # rows of a batch of 300 events
TURNS, ROUNDS = 100, 5
COUNTS = (1, 2, 4)


def batch(seed):
    drawn = torch.Generator().manual_seed(seed)
    nodes = torch.randperm(SPEC.num_nodes, generator=drawn)
    written, time_of = nodes[:WRITTEN], torch.rand(WRITTEN, dtype=torch.float64, generator=drawn)
    memory = torch.rand(WRITTEN, SPEC.memory_dim, generator=drawn)
    mails = torch.rand(WRITTEN, SPEC.mail_dim, generator=drawn)
    update = StateUpdate(written, memory, time_of, written, mails, time_of, written, position=seed, changed=written)
    return nodes[:READ], update


def seconds(store, batches):
    begin = time.perf_counter()
    for nodes, update in batches:
        store.fetch(nodes).wait()
        store.commit(update)
    assert store.position >= 0  # which is known once all has been written
    return time.perf_counter() - begin


def on_rank(rank, ranks):
    """Return what each round has taken, and the process of it, by number of ranks; 0 is the store of one process."""
    groups = ProcessGroups(RankLayout.of(ranks, families={str(n): (tuple(range(n)),) for n in COUNTS}), rank)
    batches = [batch(100 * rank + number) for number in range(TURNS)]
    stores = {0: LocalStateStore(SPEC)} if rank == 0 else {}
    stores |= {n: ServedStateStore(SPEC, tuple(range(n)), rank, groups.of(str(n))) for n in COUNTS if rank < n}
    found = {n: [] for n in stores}
    for number in range(ROUNDS + 1):
        for count in (0, *COUNTS):
            dist.barrier()
            if count in stores:
                busy = stores[count].served.busy if count else 0.0
                taken = seconds(stores[count], batches)
                busy = stores[count].served.busy - busy if count else taken
                if number:  # the first warms up
                    found[count].append((taken, busy))
            dist.barrier()
    return found


@pytest.mark.timeout(600)
def test_memory_process_against_a_store_in_one_process(benchmark):
    found = benchmark.pedantic(run_ranks, args=(on_rank, 4), kwargs={"timeout": 500}, rounds=1)[0]
    rows, direct = TURNS * (READ + 2 * WRITTEN), median(taken for taken, _ in found[0])
    for count in (0, *COUNTS):
        ratios = [direct * max(count, 1) / taken for taken, _ in found[count]]
        rate = rows * max(count, 1) / median(taken for taken, _ in found[count])
        busy = median(busy / taken for taken, busy in found[count])
        name = f"{count} ranks" if count else "direct"
        benchmark.extra_info[name] = {"rows_per_second": rate, "ratio": median(ratios), "busy": busy}
        print(f"{name}: {rate:,.0f} rows/s, {median(ratios):.2f} of direct ({min(ratios):.2f} to {max(ratios):.2f}), "
              f"busy {busy:.0%}")  # fmt: skip
    assert all(len(taken) == ROUNDS for taken in found.values())
