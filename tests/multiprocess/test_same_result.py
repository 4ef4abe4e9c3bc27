"""Several ranks against one process on the global batch: losses, gradients, weights, memory, mailbox, metrics."""

import pytest
import torch

from lightning_tgnn import (
    DepCacheStrategy,
    DepCommStrategy,
    DynamicNodeClassification,
    EdgeClassification,
    SvenStrategy,
)
from tests.multiprocess.ranks import run_ranks
from tests.multiprocess.training import DelayedByHand, as_torchrun, build, fit

GLOBAL_BATCH = 24
STATE = ("memory", "memory_time", "mails", "mail_time", "mail_event", "mail_count")


def strategy(name, options):
    return {"sven": SvenStrategy, "depcomm": DepCommStrategy, "depcache": DepCacheStrategy}[name](**options)


SVEN = [
    {
        "partition": "interval",
        "micro_batches": 1,
        "staleness": 0,
        "row_cache_mb": 0,
        "fetch_ahead": False,
        "omit_own_half": False,
        "features_by_event": False,
    },
    {"partition": "range", "micro_batches": 2, "staleness": 0},
    {"partition": "reflexbicut", "micro_batches": 3, "staleness": 0, "prefetch_batches": 2},
    {"partition": "metis", "micro_batches": 2, "staleness": 0, "row_cache_mb": 0.002},
    {"partition": "interval", "micro_batches": 2, "staleness": 0, "fetch_ahead": False, "prefetch_batches": 0},
    {"partition": "range", "micro_batches": 1, "staleness": 0, "row_cache_mb": 0, "fetch_ahead": True},
]
CASES = [(model, "sven", options) for model in ("tgn", "jodie", "apan") for options in SVEN]
CASES += [(model, name, {}) for model in ("tgn", "jodie", "apan") for name in ("depcomm", "depcache")]
CASES += [(model, "sven", {"staleness": 1, "micro_batches": 2}) for model in ("tgn", "jodie", "apan")]


def close(ours, theirs, what):
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=lambda message: f"{what}: {message}")


def on_rank(rank, ranks):
    as_torchrun(rank, ranks)
    answers = []
    for model, name, options in CASES:
        data, task = build(model, GLOBAL_BATCH // ranks)
        outcome = fit(data, task, strategy(name, options), ranks)
        del outcome["trainer"]
        answers.append(outcome)
    return answers


@pytest.fixture(scope="module")
def alone():
    outcomes = {}
    for model in ("tgn", "jodie", "apan"):
        for delayed in (False, True):
            task_class = {"task_class": DelayedByHand} if delayed else {}
            outcomes[model, delayed] = fit(*build(model, GLOBAL_BATCH, **task_class), "auto", 1)
    return outcomes


class PlainEdges(EdgeClassification):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


class PlainNodes(DynamicNodeClassification):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


def labelled(kind, batch_size):
    """A stream most of whose labels are in the first half of each global batch, so that ranks have unequal numbers."""
    rng = torch.Generator().manual_seed(3)
    labels = torch.randint(0, {"nodes": 2, "classes": 3, "several": 2}[kind], (140, 3), generator=rng)
    labels = labels if kind == "several" else labels[:, 0]
    bare = (torch.arange(140) % GLOBAL_BATCH >= GLOBAL_BATCH // 2) & (torch.rand(140, generator=rng) < 0.8)
    labels[bare] = -1
    task_class = PlainNodes if kind == "nodes" else PlainEdges
    return build("tgn", batch_size, task_class, events=140, labels=labels, hidden_dim=6)


LABELLED = [(kind, name) for kind in ("nodes", "classes", "several") for name in ("sven", "depcache")]


def labelled_cases(rank, ranks):
    options = {"sven": {"staleness": 0}, "depcache": {}}
    outcomes = {}
    for kind, name in LABELLED:
        outcomes[kind, name] = fit(*labelled(kind, GLOBAL_BATCH // ranks), strategy(name, options[name]), ranks)
        del outcomes[kind, name]["trainer"]
    return outcomes


IDLE = [(model, "time", name) for model in ("tgn", "jodie", "apan") for name in ("sven", "depcomm", "depcache")]
IDLE += [(model, "batch", "sven") for model in ("tgn", "apan")]  # a rank's past ends with the global batch's


def with_idle_ranks(rank, ranks):
    """140 events: 98 in training, so that the last global batch has 2 for 4 ranks."""
    as_torchrun(rank, ranks)
    outcomes = []
    for model, past, name in IDLE:
        options = {"staleness": 0} if name == "sven" else {}
        outcome = fit(*build(model, GLOBAL_BATCH // ranks, events=140, past=past), strategy(name, options), ranks)
        del outcome["trainer"]
        outcomes.append(outcome)
    return outcomes, labelled_cases(rank, ranks)


@pytest.mark.timeout(200)
def test_a_rank_without_events_changes_nothing():
    alone = {
        (model, past): fit(*build(model, GLOBAL_BATCH, events=140, past=past), "auto", 1)
        for model, past in {(model, past) for model, past, _ in IDLE}
    }
    outcomes, of_labels = run_ranks(with_idle_ranks, 4, timeout=190)[0]
    for (model, past, name), outcome in zip(IDLE, outcomes, strict=True):
        case, one = f"{model}, past={past}, {name}", alone[model, past]
        for key, value in one["weights"].items():
            close(outcome["weights"][key], value, f"{case}: {key}")
        for table in STATE:
            close(outcome["state"][table], one["state"][table], f"{case}: {table}")
    for kind, name in LABELLED:
        outcome, one = of_labels[kind, name], fit(*labelled(kind, GLOBAL_BATCH), "auto", 1)
        close(outcome["gradients"], one["gradients"], f"{kind}, {name}: gradients")
        for key, value in one["weights"].items():
            close(outcome["weights"][key], value, f"{kind}, {name}: {key}")
        assert outcome["val"] == pytest.approx(one["val"], abs=1e-3), (kind, name)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_equal_one_process(ranks, alone):
    outcomes = run_ranks(on_rank, ranks, timeout=270)
    for number, (model, name, options) in enumerate(CASES):
        case = f"{model}, {name}, {options}"
        wanted = alone[model, options.get("staleness") == 1]
        every = [outcome[number] for outcome in outcomes]
        losses = torch.stack([outcome["losses"] for outcome in every]).mean(0)
        close(losses, wanted["losses"], f"{case}: losses")
        for outcome in every:
            if options.get("staleness") != 1:  # the reference's recorder sees them before they are swapped
                close(outcome["gradients"], wanted["gradients"], f"{case}: gradients")
            for key, value in wanted["weights"].items():
                close(outcome["weights"][key], value, f"{case}: {key}")
            assert outcome["val"] == pytest.approx(wanted["val"], abs=1e-3), case
        for table in STATE:
            close(every[0]["state"][table], wanted["state"][table], f"{case}: {table}")
