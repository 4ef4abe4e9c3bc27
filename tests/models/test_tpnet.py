"""TPNet's state against explicit temporal walk matrices, and its scores against a loop over pairs and neighbours."""

import math

import torch

from lightning_tgnn import LinkPrediction, TemporalDataModule
from lightning_tgnn.models import TPNet
from lightning_tgnn.types import UpdatedRows
from tests.data.example_streams import random_store

NODES, DECAY, LENGTH = 10, 0.3, 3


class Exact(TPNet):
    """Rows 0 are unit vectors, so that inner products are entries of products of walk matrices, without projection."""

    def first_rows(self, nodes):
        return torch.eye(self.walk_dim)[nodes]


def trained_on(events=60, batch_size=7, kind=Exact, **options):
    store = random_store(events, NODES, edge_dim=2, seed=3)
    data = TemporalDataModule(store, batch_size=batch_size, num_neighbors=4, num_eval_negatives=3, num_workers=0)
    task = LinkPrediction(
        lambda info: kind(
            info, decay=DECAY, walk_length=LENGTH, num_neighbors=4, embedding_dim=12, time_dim=6, **options
        )
    )
    data.setup()
    task.build(data.info)
    data.sampled_roots = "all"
    return store, data, task.eval()


def walk_matrices(store, ends, time):
    """Return A_0 .. A_k at a time: sums over walks of events in descending batches of exp(-decay (time - t)) each."""
    matrices = [torch.eye(NODES).double()] + [torch.zeros(NODES, NODES).double() for _ in range(LENGTH)]
    at = 0.0
    times = store.time - store.time[0]
    for start, stop in ends:
        latest = float(times[stop - 1])
        matrices = [matrix * math.exp(-DECAY * row * (latest - at)) for row, matrix in enumerate(matrices)]
        at, before = latest, [matrix.clone() for matrix in matrices]
        for event in range(start, stop):
            src, dst, weight = int(store.src[event]), int(store.dst[event]), math.exp(-DECAY * (latest - times[event]))
            for row in range(1, LENGTH + 1):
                matrices[row][src] += weight * before[row - 1][dst]
                matrices[row][dst] += weight * before[row - 1][src]
    return [matrix * math.exp(-DECAY * row * (time - at)) for row, matrix in enumerate(matrices)]


def test_rows_are_temporal_walk_matrices():
    store, data, task = trained_on(walk_dim=NODES)
    ends = []
    with torch.no_grad():
        for batch in data.train_dataloader():
            task.take_in(batch)
            ends.append((int(batch.events[0]), int(batch.events[-1]) + 1))
    everyone = torch.arange(NODES)
    held = task.state_store.fetch(everyone).wait()
    updated = UpdatedRows(held.memory, held.memory_time)
    later = torch.tensor(float(store.time[ends[-1][1] - 1] - store.time[0]) + 0.5).double()
    rows = task.model.rows_at(everyone, updated, later)
    for row, matrix in enumerate(walk_matrices(store, ends, float(later))):
        torch.testing.assert_close(rows[:, row], matrix.float(), rtol=1e-4, atol=1e-6)


def test_a_score_is_that_of_a_loop_over_pairs_and_neighbours():
    _, data, task = trained_on(kind=TPNet, walk_dim=8)
    model = task.model
    with torch.no_grad():
        for batch in data.train_dataloader():
            updated = task.apply_mail(task.fetch(batch.nodes).wait())
            found = model.score(updated, batch)
            sources, candidates = batch.candidate_pairs
            for event in range(len(batch)):
                for source, candidate, score in zip(sources[event], candidates[event], found[event], strict=True):
                    torch.testing.assert_close(
                        score, slow_score(model, updated, batch, source, candidate), rtol=1e-4, atol=1e-5
                    )
            task.commit(task.make_mails(updated, batch)).wait()


def slow_score(model, updated, batch, source, candidate):
    """Return the logit of one pair, by definition."""
    time = batch.root_times[source]
    rows = model.rows_at(batch.nodes, updated, time)

    def feature(one, other):
        both = torch.cat([rows[one], rows[other]])
        return model.pair_mlp((both @ both.t()).flatten().clamp(min=0).log1p())

    ends = batch.root_index[source], batch.root_index[candidate]
    embedded = []
    for root in (source, candidate):
        tokens = []
        for k, is_there in enumerate(batch.neighbor_mask[root]):
            node = batch.neighbor_index[root, k]
            age = model.time_encoder(torch.log1p(time - batch.neighbor_time[root, k]).float())
            parts = [age, batch.edge_features[batch.neighbor_edge[root, k]], *(feature(node, end) for end in ends)]
            token = model.project(torch.cat(parts))
            tokens.append(token if is_there else torch.zeros_like(token))
        mixed = torch.stack(tokens).unsqueeze(0)
        for block in model.blocks:
            mixed = block(mixed)
        embedded.append(mixed[0].mean(0))
    return model.head(torch.cat([*embedded, feature(*ends)]))[0]


def test_row_0_is_standard_normal_over_the_root_of_its_width():
    model = TPNet(trained_on()[2].info, walk_dim=100)
    rows = model.first_rows(torch.arange(2000))
    assert abs(float(rows.mean())) < 0.001
    assert abs(float(rows.std()) * 10 - 1) < 0.01
    assert torch.equal(model.first_rows(torch.tensor([7])), rows[7:8])
    inner = model.first_rows(torch.arange(400)) @ model.first_rows(torch.arange(400)).t()
    assert float((inner - torch.eye(400)).abs().mean()) < 0.1  # unit vectors, nearly orthogonal


def test_scores_in_pieces_are_the_same():
    _, data, task = trained_on(kind=TPNet, walk_dim=8)
    batch = next(iter(data.val_dataloader()))
    with torch.no_grad():
        updated = task.apply_mail(task.fetch(batch.nodes).wait())
        whole = task.model.score(updated, batch)
        task.model.pairs_per_piece = 5
        torch.testing.assert_close(task.model.score(updated, batch), whole)
    assert whole.shape == (len(batch), 4)
