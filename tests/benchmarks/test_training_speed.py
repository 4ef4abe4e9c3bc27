"""Events per second of TGN training, ours against PyG's TGNMemory, TGM's, and TGL's way, in turns on one machine.

`make bench` prints, per batch size, all rates, their ratios round by round, the peak memory and where our time goes. We
play twice: "ours" embeds the nodes of each event at its time, as TGL does, "once" each node once in a batch, as PyG and
TGM do.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest
import torch

from tests.benchmarks.rounds import ROOT, Contestant

pytest.importorskip("torch_geometric")
SOURCE = Path(os.environ.get("LIGHTNING_TGNN_DATA", ROOT / "../shared/data")) / "wikipedia.txt.gz"
ROUNDS = {200: 6, 600: 4}
NEEDS = {"PyG": ("pyg_tgn", "torch_geometric"), "TGM": ("tgm_tgn", "tgm"), "TGL": ("tgl_tgn", "dgl")}
OTHERS = {name: module for name, (module, package) in NEEDS.items() if find_spec(package)}
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.mark.skipif(not SOURCE.exists(), reason=f"needs {SOURCE}")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("batch_size", [200, 600])
@pytest.mark.parametrize("device", DEVICES)
def test_tgn_against_others(benchmark, device, batch_size, precision):
    embed_at = {"ours": "event", "once": "batch"}
    others = {name: module for name, module in OTHERS.items() if name != "TGL" or device == "cpu"}  # DGL is for CPUs
    players = {name: Contestant("ours_tgn", SOURCE, batch_size, device, precision, at) for name, at in embed_at.items()}
    players |= {name: Contestant(module, SOURCE, batch_size, device) for name, module in others.items()}
    try:
        for player in players.values():
            player.play()  # warm up
        reports = []
        rounds = ROUNDS[batch_size]
        benchmark.pedantic(
            lambda: reports.append({name: player.play() for name, player in players.items()}),
            rounds=rounds,
            iterations=1,
        )
    finally:
        for player in players.values():
            player.close()
    rates = {name: [one[name]["events"] / one[name]["seconds"] for one in reports] for name in players}
    peaks = {name: max(one[name]["peak_mb"] for one in reports) for name in players}
    ratios = {
        (mine, name): [own / theirs for own, theirs in zip(rates[mine], rates[name], strict=True)]
        for mine in embed_at
        for name in others
    }
    on_device = {name: max(one[name].get("device_mb", 0.0) for one in reports) for name in players}
    found = {
        name: {"events_per_second": median(rates[name]), "peak_mb": peaks[name], "device_mb": on_device[name]}
        for name in players
    }
    benchmark.extra_info.update(found, ratios={" / ".join(pair): median(found) for pair, found in ratios.items()})
    print(f"\nTGN, wikipedia, 172 edge features, batch {batch_size}, {precision}, {device}")
    for name in players:
        on_gpu = f", {on_device[name]:,.0f} MB of tensors on the GPU" if device == "cuda" else ""
        print(f"  {name:5} {median(rates[name]):8,.0f} events/s, peak resident memory {peaks[name]:,.0f} MB{on_gpu}")
    for (mine, name), by_round in ratios.items():
        shown = ", ".join(f"{ratio:.2f}" for ratio in by_round)
        print(f"  {mine} is {median(by_round):.2f} times as fast as {name} (rounds {shown})")
    for mine in embed_at:
        print(f"  {mine}:")
        stages = {stage: sum(one[mine]["stages"][stage] for one in reports) for stage in reports[0][mine]["stages"]}
        total = sum(one[mine]["seconds"] for one in reports)
        stages["other (Lightning, optimizer, waiting for batches)"] = total - sum(stages.values())
        for stage, seconds in sorted(stages.items(), key=lambda item: -item[1]):
            print(f"  {seconds / total:6.1%}  {stage}")
    assert all(rate > 0 for of_one in rates.values() for rate in of_one)
