"""Events per second of TGN training, ours against PyG's TGNMemory, in turns on one machine.

`make bench` prints, per batch size, both rates, their ratio round by round, the peak memory and where our time goes.
"""

import os
from pathlib import Path
from statistics import median

import pytest

from tests.benchmarks.rounds import ROOT, Contestant

pytest.importorskip("torch_geometric")
SOURCE = Path(os.environ.get("LIGHTNING_TGNN_DATA", ROOT / "../shared/data")) / "wikipedia.txt.gz"
ROUNDS = {200: 6, 600: 4}


@pytest.mark.skipif(not SOURCE.exists(), reason=f"needs {SOURCE}")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("batch_size", [200, 600])
def test_tgn_against_pyg(benchmark, batch_size, precision):
    ours, pyg = Contestant("ours_tgn", SOURCE, batch_size, precision), Contestant("pyg_tgn", SOURCE, batch_size)
    try:
        ours.play(), pyg.play()  # warm up
        reports = []
        rounds = ROUNDS[batch_size]
        benchmark.pedantic(lambda: reports.append((ours.play(), pyg.play())), rounds=rounds, iterations=1)
    finally:
        ours.close(), pyg.close()
    rates = [[report["events"] / report["seconds"] for report in pair] for pair in reports]
    ratios = [mine / theirs for mine, theirs in rates]
    medians = [median(column) for column in zip(*rates, strict=True)]
    stages = {stage: sum(mine["stages"][stage] for mine, _ in reports) for stage in reports[0][0]["stages"]}
    total = sum(mine["seconds"] for mine, _ in reports)
    stages["other (Lightning, optimizer, waiting for batches)"] = total - sum(stages.values())
    peaks = [max(report["peak_mb"] for report in column) for column in zip(*reports, strict=True)]
    benchmark.extra_info.update(ratio=median(ratios), events_per_second=medians, peak_mb=peaks)
    print(f"\nTGN, wikipedia, 172 edge features, batch {batch_size}, {precision}")
    print(f"  ours {medians[0]:8,.0f} events/s   PyG {medians[1]:8,.0f} events/s   ratio {median(ratios):.2f}", end="")
    print(f" (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)})")
    print(f"  peak resident memory: ours {peaks[0]:,.0f} MB, PyG {peaks[1]:,.0f} MB")
    for stage, seconds in sorted(stages.items(), key=lambda item: -item[1]):
        print(f"  {seconds / total:6.1%}  {stage}")
    assert all(rate > 0 for rate in medians)
