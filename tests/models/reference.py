"""Slow float64 reference of TGN, JODIE and APAN: event by event, plain loops, nothing folded, nothing shared.

Only the names of the weights are those of the code under test.
"""

import math

import torch
from torch.nn import functional

D = torch.float64


class Reference:
    """Node state and weights as dictionaries; ``weights`` are float64 leaves."""

    def __init__(
        self,
        name,
        weights,
        *,
        memory_dim,
        heads,
        slots,
        gap,
        sources,
        destinations,
        times,
        k,
        edge_features=None,
        node_features=None,
        embeds_once=False,
    ):
        self.name, self.w, self.heads, self.slots, self.k = name, weights, heads, slots, k
        self.memory_dim = memory_dim
        self.gap_mean, self.gap_std = gap
        self.src, self.dst = sources, destinations
        self.times = [t - times[0] for t in times]
        self.edge, self.node = edge_features, node_features
        self.memory, self.memory_time, self.mails = {}, {}, {}
        self.embeds_once, self.first = embeds_once, 0

    def row(self, node):
        zero = torch.zeros(self.memory_dim, dtype=D)
        return self.memory.get(node, zero), self.memory_time.get(node, 0.0), self.mails.get(node, [])

    def encode(self, prefix, elapsed):
        w, b = self.w[f"{prefix}.weight"], self.w[f"{prefix}.bias"]
        return torch.cos(min(elapsed, self.gap_mean + 10 * self.gap_std) / self.gap_mean * w + b)

    def linear(self, prefix, x):
        out = self.w[f"{prefix}.weight"] @ x
        return out + self.w[f"{prefix}.bias"] if f"{prefix}.bias" in self.w else out

    def updated(self, node):
        s, t_u, mails = self.row(node)
        if not mails:
            return s, t_u
        latest = max(t for t, _ in mails)
        return {"tgn": self.gru, "jodie": self.rnn, "apan": self.mailbox_attention}[self.name](s, t_u, mails), latest

    def gru(self, s, t_u, mails):
        ((t, mail),) = mails
        phi = self.encode("updater.time_encoder", t - t_u)
        i = self.linear("updater.from_mail", mail) + self.linear("updater.from_time", phi)
        h = self.linear("updater.from_memory", s)
        d = len(s)
        reset, update = torch.sigmoid(i[:d] + h[:d]), torch.sigmoid(i[d : 2 * d] + h[d : 2 * d])
        proposal = torch.tanh(i[2 * d :] + reset * h[2 * d :])
        return (1 - update) * proposal + update * s

    def rnn(self, s, t_u, mails):
        ((t, mail),) = mails
        phi = self.encode("updater.time_encoder", t - t_u)
        parts = self.linear("updater.from_mail", mail) + self.linear("updater.from_time", phi)
        return torch.tanh(parts + self.linear("updater.from_memory", s))

    def mailbox_attention(self, s, t_u, mails):
        d, size = len(s), len(s) // self.heads
        query = self.linear("updater.query", s)
        keys, values = [], []
        for t, mail in mails:
            phi = self.encode("updater.time_encoder", t - t_u)
            both = self.linear("updater.key_value", mail) + self.linear("updater.key_value_time", phi)
            keys.append(both[:d])
            values.append(both[d:])
        mixed = []
        for head in range(self.heads):
            part = slice(head * size, (head + 1) * size)
            scores = torch.stack([query[part] @ key[part] / math.sqrt(size) for key in keys])
            attention = torch.softmax(scores, 0)
            mixed.append(sum(a * value[part] for a, value in zip(attention, values, strict=True)))
        x = self.norm("updater.norm", s + torch.cat(mixed))
        return self.linear("updater.mlp.3", torch.relu(self.linear("updater.mlp.0", x)))

    def norm(self, prefix, x):
        centred = x - x.mean()
        scaled = centred / torch.sqrt((centred**2).mean() + 1e-5)
        return scaled * self.w[f"{prefix}.weight"] + self.w[f"{prefix}.bias"]

    def state(self, node):
        h, t = self.updated(node)
        if self.node is not None:
            h = h + self.linear("from_features", self.node[node])
        if "static_memory.weight" in self.w:
            h = h + self.linear("from_static", self.w["static_memory.weight"][node])
        return h, t

    def neighbors(self, node, event):
        """The K latest events of ``node`` before the batch, or at earlier times than ``event``."""
        found = []
        for e in range((self.first if self.embeds_once else event) - 1, -1, -1):
            if len(found) == self.k:
                break
            if self.times[e] == self.times[event] and not self.embeds_once:
                continue
            if node == self.src[e]:
                found.append((self.dst[e], e))
            elif node == self.dst[e]:
                found.append((self.src[e], e))
        return found

    def embed(self, node, event):
        event = self.first if self.embeds_once else event
        h, t_u = self.state(node)
        t = self.times[event]
        if self.name in {"jodie", "apan"}:
            elapsed = torch.tensor([math.log(1 + (t - t_u) / self.gap_mean)], dtype=D)
            return self.linear("embedding.out", h * (1 + self.linear("embedding.drift", elapsed)))
        return self.attend(h, node, event)

    def attend(self, h, node, event):
        zero_age = self.encode("embedding.time_encoder", 0.0)
        query = self.linear("embedding.query", h) + self.linear("embedding.query_time", zero_age)
        size = len(query) // self.heads
        inputs = []
        for neighbor, e in self.neighbors(node, event):
            parts = [self.state(neighbor)[0]]
            if self.edge is not None:
                parts.append(self.edge[e])
            parts.append(self.encode("embedding.time_encoder", self.times[event] - self.times[e]))
            inputs.append(torch.cat(parts))
        heads = []
        for head in range(self.heads):
            if not inputs:
                heads.append(torch.zeros(size, dtype=D))
                continue
            key, value = self.w["embedding.key"][head], self.w["embedding.value"][head]
            part = query[head * size : (head + 1) * size]
            scores = torch.stack([part @ (key @ x) / math.sqrt(size) for x in inputs])
            attention = torch.softmax(scores, 0)
            heads.append(sum(a * (x @ value) for a, x in zip(attention, inputs, strict=True)))
        mixed = self.linear("embedding.from_neighbors", torch.cat(heads)) + self.linear("embedding.from_own", h)
        return self.norm("embedding.norm", torch.relu(mixed))

    def score(self, z_source, z_destination):
        hidden = self.linear("predictor.source", z_source) + self.linear("predictor.destination", z_destination)
        return self.linear("predictor.out", torch.relu(hidden))[0]

    def step(self, events, negatives):
        """Return the loss of a batch, then write its state."""
        positive_losses, negative_losses = [], []
        self.first = events[0]
        for event, others in zip(events, negatives, strict=True):
            z = self.embed(self.src[event], event)
            positive_losses.append(functional.softplus(-self.score(z, self.embed(self.dst[event], event))))
            negative_losses += [functional.softplus(self.score(z, self.embed(node, event))) for node in others]
        loss = torch.stack(positive_losses).mean() + torch.stack(negative_losses).mean()
        with torch.no_grad():
            self.write(events)
        return loss

    def write(self, events):
        touched = {node for e in events for node in (self.src[e], self.dst[e])}
        new = {node: self.updated(node) for node in touched}
        sent = {}
        for e in events:
            u, v = self.src[e], self.dst[e]
            of_u, of_v = (self.mail(new, a, b, e) for a, b in ((u, v), (v, u)))
            if self.name == "apan":
                for node, mail in ((u, of_u), (v, of_v)):
                    sent.update({neighbor: mail for neighbor, _ in self.neighbors(node, e)})
            sent[u] = of_u
            sent[v] = of_v
        for node, (memory, time) in new.items():
            self.memory[node], self.memory_time[node] = memory, time
        for node, mail in sent.items():
            self.mails[node] = [*self.mails.get(node, []), mail][-self.slots :]

    def mail(self, new, own, other, event):
        parts = [new[own][0], new[other][0]]
        if self.edge is not None:
            parts.append(self.edge[event])
        return self.times[event], torch.cat(parts)
