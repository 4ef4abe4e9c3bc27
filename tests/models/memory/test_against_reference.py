"""The models, batched, folded and float32, against the slow reference: loss, gradients, memory and mailbox."""

import pytest
import torch

from lightning_tgnn import EventStore, LinkPrediction, TemporalDataModule
from lightning_tgnn.models.memory.time_encoding import TimeEncoder
from tests.models.reference import Reference

NUM_NODES, NUM_EVENTS, BATCH, K = 12, 240, 16, 4


def make_store(edge_dim, node_dim, seed=0):
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(0, NUM_NODES, (NUM_EVENTS,), generator=g)
    dst = torch.randint(0, NUM_NODES, (NUM_EVENTS,), generator=g)  # repeats in a batch, self loops, one-set
    time = torch.randint(0, 400, (NUM_EVENTS,), generator=g).double().sort().values + 1e9  # ties, Unix-like
    edge = torch.randn(NUM_EVENTS, edge_dim, generator=g) if edge_dim else None
    node = torch.randn(NUM_NODES + 1, node_dim, generator=g) if node_dim else None
    return EventStore.from_arrays(src.numpy(), dst.numpy(), time.numpy(), edge_features=edge, node_features=node)


def make_pair(name, store, static_dim, num_negatives, embed_at="event"):
    torch.manual_seed(1)
    reading = {"batch_size": BATCH, "num_neighbors": K, "num_train_negatives": num_negatives, "prefetch_batches": 0}
    past = "batch" if embed_at == "batch" else "time"
    data = TemporalDataModule(store, **reading, past=past, embed_at=embed_at, seed=3)
    task = LinkPrediction(
        name, memory_dim=8, embedding_dim=6, time_dim=5, mailbox_size=3, static_dim=static_dim, dropout=0.0
    )
    task.build(data.info)
    for parameter in task.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)  # biases that matter
    weights = {
        name.removeprefix("model."): value.detach().double().requires_grad_() for name, value in task.named_parameters()
    }
    reference = Reference(
        name,
        weights,
        memory_dim=8,
        heads=2,
        slots=3 if name == "apan" else 1,
        gap=(data.info.gap_mean, data.info.gap_std),
        sources=store.src.tolist(),
        destinations=store.dst.tolist(),
        times=store.time.tolist(),
        k=K,
        edge_features=None if store.edge_features is None else store.edge_features.double(),
        node_features=None if store.node_features is None else store.node_features.double(),
        embeds_once=embed_at == "batch",
    )
    return task, data, reference


def assert_same_state(task, reference):
    rows = task.state_store.rows
    for node in range(NUM_NODES):
        memory, time, mails = reference.row(node)
        torch.testing.assert_close(rows.memory[node].double(), memory, rtol=1e-4, atol=1e-5)
        assert rows.memory_time[node].item() == time
        kept = sorted(zip(rows.mail_time[node].tolist(), rows.mails[node].double(), strict=True), key=lambda m: m[0])
        kept = kept[len(kept) - min(len(kept), int(rows.mail_count[node])) :]
        assert [t for t, _ in kept] == sorted(t for t, _ in mails)
        assert len(mails) == len(kept)
        # Mails of equal time may stand in any slot, so compare the mailboxes as sets of rows.
        for _, mail in mails:
            assert any(torch.allclose(mail, other, rtol=1e-4, atol=1e-5) for _, other in kept)


@pytest.mark.parametrize("name", ["tgn", "jodie", "apan"])
@pytest.mark.parametrize(
    ("edge_dim", "node_dim", "static_dim", "num_negatives"), [(0, 0, 0, 1), (7, 0, 0, 1), (0, 5, 4, 2), (7, 5, 3, 3)]
)
@pytest.mark.parametrize("embed_at", ["event", "batch"])
def test_same_loss_gradients_and_state(name, edge_dim, node_dim, static_dim, num_negatives, embed_at):
    store = make_store(edge_dim, node_dim)
    task, data, reference = make_pair(name, store, static_dim, num_negatives, embed_at)
    data.sampled_roots = task.sampled_roots
    for number, batch in enumerate(data.train_dataloader()):
        loss = task.loss(*task.run_stages(batch))
        expected = reference.step(batch.events.tolist(), batch.negatives.tolist())
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
        if number % 3 == 2:
            assert_same_gradients(task, reference, loss, expected)
    assert_same_state(task, reference)


def assert_same_gradients(task, reference, loss, expected):
    names = [name for name, _ in task.named_parameters()]
    ours = torch.autograd.grad(loss, list(task.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(expected, list(reference.w.values()), allow_unused=True)
    largest = max(g.abs().max() for g in theirs if g is not None)
    assert largest > 1e-3
    for name, got, want in zip(names, ours, theirs, strict=True):
        if want is None or got is None:
            assert got is None or not got.any(), name
            assert want is None or not want.any(), name
            continue
        torch.testing.assert_close(
            got.double(), want, rtol=2e-3, atol=2e-5 * float(largest) + 1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", ["tgn", "jodie", "apan"])
def test_times_are_told_apart_up_to_ten_deviations_above_the_mean(name):
    task, data, _ = make_pair(name, make_store(0, 0), 0, 1)
    encoders = [module for module in task.modules() if isinstance(module, TimeEncoder)]
    assert encoders
    for encoder in encoders:
        assert float(encoder.longest) == pytest.approx(data.info.gap_mean + 10 * data.info.gap_std)
