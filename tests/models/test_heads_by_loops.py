"""TGAT, GraphMixer, DyGFormer and TNCN against loops over events of the stream, with the weights of the models."""

import math

import pytest
import torch

from lightning_tgnn import LinkPrediction, TemporalDataModule
from lightning_tgnn.models import TGAT, DyGFormer, GraphMixer
from tests.data.example_streams import random_store

K, NODES = 4, 12
BUILT = {
    "tgat": lambda info: TGAT(info, embedding_dim=8, time_dim=6),
    "graphmixer": lambda info: GraphMixer(info, num_neighbors=K, embedding_dim=8, time_dim=6),
    "dygformer": lambda info: DyGFormer(info, history=K + 1, embedding_dim=6, channel_dim=4, time_dim=6),
    "dygformer in patches": lambda info: DyGFormer(
        info, history=K + 2, patch=2, embedding_dim=6, channel_dim=4, time_dim=6
    ),
    "tncn": "tncn",
}


class Past:
    """The events of a stream before a time, of a node, the latest first."""

    def __init__(self, store, width):
        self.store, self.width = store, width
        self.time = store.time - store.time[0]

    def of(self, node, time):
        """Return other end, time and event of the latest events of a node that are strictly earlier."""
        found = []
        for event in reversed(range(len(self.store))):
            src, dst, at = int(self.store.src[event]), int(self.store.dst[event]), float(self.time[event])
            if at < time and node in (src, dst):
                found.append((src + dst - node, at, event))
        return found[: self.width]


def attended(layer, own, found):
    """Return the result of a layer of attention for a root with row ``own``, of rows, ages and edge features found."""

    def encode(age):
        encoder = layer.time_encoder
        return encoder(encoder.elapsed(torch.tensor([age]).double(), torch.zeros(1)))[0]

    query = layer.query(own) + layer.query_time(encode(0.0))
    inputs = [torch.cat([row, edge, encode(age)]) for row, age, edge in found]
    heads, size = [], len(query) // layer.num_heads
    for head in range(layer.num_heads):
        if not inputs:
            heads.append(torch.zeros(size))
            continue
        part = query[head * size : (head + 1) * size]
        weights = torch.stack([part @ (layer.key[head] @ x) / math.sqrt(size) for x in inputs]).softmax(0)
        heads.append(sum(weight * (x @ layer.value[head]) for weight, x in zip(weights, inputs, strict=True)))
    return layer.norm(torch.relu(layer.from_neighbors(torch.cat(heads)) + layer.from_own(own)))


def slow_tgat(model, past, node, time, depth=2):
    """Return the embedding of a node by ``depth`` layers, its neighbours embedded at the times of their events."""
    if depth == 0:
        return past.store.node_features[node]
    below = lambda other, at: slow_tgat(model, past, other, at, depth - 1)  # noqa: E731
    edges = past.store.edge_features
    found = [(below(other, at), time - at, edges[event]) for other, at, event in past.of(node, time)]
    return attended(model.layers[depth - 1], below(node, time), found)


def slow_tncn(model, z, alone, past, pair, time):
    """Return the logit of a pair, given the embeddings of its ends, and of all nodes without their neighbours."""
    own, others = ({other for other, _, _ in past.of(node, time)} for node in pair)
    common = sum((alone[node] for node in own & others), torch.zeros_like(z[0]))
    has = [alone[pair[0]] * (pair[0] in others), alone[pair[1]] * (pair[1] in own)]
    return model.head(torch.cat([z[0] * z[1], *has, common]))[0]


def scores_of(data, task):
    """Yield each event with its candidates and scores of the test split, as the task makes them."""
    for batch in data.test_dataloader():
        positive, negatives = task.run_stages(batch)
        for event in range(len(batch)):
            row = torch.cat([positive[event : event + 1], negatives[event]])
            yield int(batch.events[event]), [int(batch.dst[event]), *batch.negatives[event].tolist()], row


def slow_graphmixer(model, past, node, time):
    rows = []
    around = torch.zeros(past.store.node_feature_dim)
    found = past.of(node, time)
    for other, at, event in found:
        age = torch.cos((time - at) * 10.0 ** -torch.linspace(0, 9, 6, dtype=torch.float64)).float()
        rows.append(model.project(torch.cat([age, past.store.edge_features[event]])))
        around += past.store.node_features[other] / len(found)
    rows = torch.stack([*rows, *[torch.zeros(8)] * (K - len(rows))]).unsqueeze(0)
    for block in model.blocks:
        tokens = torch.nn.functional.layer_norm(
            rows.transpose(1, 2), (K,), block.token_norm.weight, block.token_norm.bias
        )
        rows = rows + block.over_tokens(tokens).transpose(1, 2)
        rows = rows + block.over_channels(block.channel_norm(rows))
    return model.out(torch.cat([rows[0].mean(0), around + past.store.node_features[node]]))


def slow_dygformer(model, past, pair, time):
    history = [[(node, time, None), *past.of(node, time)] for node in pair]
    count = [
        [[sum(other == node for other, _, _ in side) for side in history] for node, _, _ in own] for own in history
    ]
    entries = []
    for side in range(2):
        for place in range(model.num_neighbors + 1):
            if place >= len(history[side]):
                entries.append(None)
                continue
            node, at, event = history[side][place]
            edge = torch.zeros(2) if event is None else past.store.edge_features[event]
            own = torch.tensor(count[side][place]).float().unsqueeze(1)
            age = model.time_encoder(torch.tensor(time - at).float())
            entries.append((past.store.node_features[node], edge, age, model.co_occurrence(own).sum(0)))
    tokens, empty = [], []
    for start in range(0, len(entries), model.patch):
        patch = entries[start : start + model.patch]
        parts = []
        for number, channel in enumerate(model.channels):
            width = channel.in_features // model.patch
            parts.append(channel(torch.cat([torch.zeros(width) if one is None else one[number] for one in patch])))
        tokens.append(torch.cat(parts))
        empty.append(all(one is None for one in patch))
    kept = [token for token, is_empty in zip(tokens, empty, strict=True) if not is_empty]
    made, half = model.transformer(torch.stack(kept).unsqueeze(0))[0], len(tokens) // 2
    first = half - sum(empty[:half])
    return model.head(torch.cat([model.out(side.mean(0)) for side in (made[:first], made[first:])]))[0]


def prepared(name):
    store = random_store(90, NODES, edge_dim=2, node_dim=3, seed=5)
    width = {"dygformer in patches": K + 1}.get(name, K)
    data = TemporalDataModule(store, batch_size=9, num_neighbors=width, num_eval_negatives=2, num_workers=0)
    task = LinkPrediction(
        BUILT[name], **({"memory_dim": 8, "embedding_dim": 8, "time_dim": 6} if name == "tncn" else {})
    )
    data.setup()
    task.build(data.info)
    data.sampled_roots = task.sampled_roots
    return Past(data.store, width), data, task.eval()


EMBEDDED = {"graphmixer": slow_graphmixer, "tgat": slow_tgat}


@pytest.mark.parametrize("name", ["graphmixer", "tgat", "dygformer", "dygformer in patches"])
@torch.no_grad()
def test_scores_are_those_of_a_loop(name):
    past, data, task = prepared(name)
    for event, candidates, row in scores_of(data, task):
        src, time = int(past.store.src[event]), float(past.time[event])
        for candidate, score in zip(candidates, row, strict=True):
            if name in EMBEDDED:
                ends = torch.stack([EMBEDDED[name](task.model, past, node, time) for node in (src, candidate)])
                wanted = task.predictor(ends, 1, 0)[0][0]
            else:
                wanted = slow_dygformer(task.model, past, (src, candidate), time)
            assert math.isclose(float(score), float(wanted), rel_tol=1e-4, abs_tol=1e-5), (event, candidate)


@torch.no_grad()
def test_the_head_of_tncn_is_a_loop_over_common_neighbours():
    past, data, task = prepared("tncn")
    for batch in data.train_dataloader():
        task.take_in(batch)
    shared = 0
    for batch in data.test_dataloader():
        updated = task.apply_mail(task.fetch(batch.nodes).wait())
        roots, alone = task.model.encode(updated, batch)
        of_node = dict(zip(batch.nodes.tolist(), alone, strict=True))
        found, (sources, candidates) = task.model.score(updated, batch), batch.candidate_pairs
        for event, time in enumerate(batch.time.tolist()):
            for source, candidate, score in zip(sources[event], candidates[event], found[event], strict=True):
                pair = [int(batch.nodes[batch.root_index[root]]) for root in (source, candidate)]
                wanted = slow_tncn(task.model, (roots[source], roots[candidate]), of_node, past, pair, time)
                assert math.isclose(float(score), float(wanted), rel_tol=1e-4, abs_tol=1e-5), (event, pair)
                shared += len({o for o, _, _ in past.of(pair[0], time)} & {o for o, _, _ in past.of(pair[1], time)})
        task.take_in(batch)
    assert shared > 50
