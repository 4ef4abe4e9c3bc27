"""Models, message functions, samplers and tasks of a user's own: through fit, checkpoint, resume and predictor."""

import sys
from functools import cache, partial
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_tgnn import (
    DynamicNodeClassification,
    EdgeClassification,
    LinkPrediction,
    NodeClassification,
    Predictor,
    SnapshotLinkPrediction,
    TemporalDataModule,
)
from lightning_tgnn.__main__ import main
from lightning_tgnn.algorithms.schedules import DataParallel
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.cli import TGNNCommand
from lightning_tgnn.data import EventStore, random_below
from lightning_tgnn.models import MemoryModel
from lightning_tgnn.types import RankLayout
from tests.data.example_streams import random_store
from tests.tasks import own_parts
from tests.tasks.own_parts import GatedMessage, MeanModel, Near, OwnLinks, PushModel, SumModel, SwappedModel, near

SMALL = {"memory_dim": 8, "embedding_dim": 8, "time_dim": 4, "mailbox_size": 3, "dropout": 0.0}
STORE = random_store(160, num_nodes=16, edge_dim=3, ties=False)


def data_module(**options):
    store = options.pop("store", STORE)
    return TemporalDataModule(store, **{"batch_size": 20, "num_neighbors": 3, "num_eval_negatives": 4, **options})


def trainer(**options):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return pl.Trainer(**{"accelerator": "cpu", "max_epochs": 2, "num_sanity_val_steps": 0, **quiet, **options})


# What the task is made of, beside what a predictor has to be given: a class gets the settings that the file has for it.
OWN = {
    "model": ({"model": MeanModel}, {"model": MeanModel}),
    "settings": ({"model": partial(MeanModel, width=5)}, {"model": MeanModel}),
    "mail": ({"model": SumModel}, {"model": SumModel}),
    "mail of the usual width": ({"model": SwappedModel}, {"model": SwappedModel}),
    "mails to neighbours": ({"model": PushModel}, {"model": PushModel}),
    "message of tgn": ({"model": "tgn", "message": GatedMessage, **SMALL}, {"message": GatedMessage}),
    "message of jodie": ({"model": "jodie", "message": GatedMessage, **SMALL}, {"message": GatedMessage}),
    "message of apan": ({"model": "apan", "message": GatedMessage, **SMALL}, {"message": GatedMessage}),
    "task": (SMALL, {"task": OwnLinks}),
}


def make(name):
    torch.manual_seed(1)
    arguments, given = OWN[name]
    return given.get("task", LinkPrediction)(**arguments, lr=1e-2)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Return a task, its first weights, and the folder with checkpoints of step 8 and of the end; trains once."""

    @cache
    def fit(name):
        folder, task, data = tmp_path_factory.mktemp("own"), make(name), data_module()
        data.setup()
        task.build(data.info)
        first = {key: value.clone() for key, value in task.state_dict().items()}
        save = ModelCheckpoint(folder, "half", every_n_train_steps=8)
        run = trainer(callbacks=[save], enable_checkpointing=True)
        run.fit(task, datamodule=data)
        run.save_checkpoint(folder / "end.ckpt")
        return task, first, folder

    return fit


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key], key


@pytest.mark.parametrize("name", OWN)
def test_it_learns_and_a_resumed_run_ends_the_same(fitted, name):
    task, first, folder = fitted(name)
    for key, weight in task.model.named_parameters():
        assert not torch.equal(weight, first[f"model.{key}"]), f"{key} has learnt nothing"
    torch.load(folder / "half.ckpt", weights_only=True)
    again = make(name)
    trainer().fit(again, datamodule=data_module(), ckpt_path=folder / "half.ckpt")
    assert_equal(again.state_dict(), task.state_dict())
    assert_equal(again.state_store.state_dict(), task.state_store.state_dict())


@pytest.mark.parametrize("name", OWN)
def test_predictors_answer_like_evaluation_once_they_have_the_class(fitted, tmp_path, name):
    (task, _, folder), (arguments, given) = fitted(name), OWN[name]
    path = folder / "end.ckpt"
    data, (src, dst, time) = data_module(), (STORE.src.numpy(), STORE.dst.numpy(), STORE.time.numpy())
    expected = [float(part["probability"][0]) for part in trainer().predict(task, datamodule=data)]

    predictor = Predictor.from_checkpoint(path, data, catch_up_stream=False, **given)
    events = data.split.val
    predictor.observe(src[events], dst[events], time[events], STORE.edge_features[events].numpy())
    predictor.close_batch()
    scored = []
    for events in data.split.test.split(data.batch_size):
        scored.append(float(predictor.score(src[events[:1]], dst[events[:1]], time[events[:1]])[0]))
        predictor.observe(src[events], dst[events], time[events], STORE.edge_features[events].numpy())
    np.testing.assert_allclose(scored, expected, atol=1e-5)

    predictor.save(tmp_path / "served.pt")
    for loaded in (Predictor.load(tmp_path / "served.pt", **given), Predictor.load(tmp_path / "served.pt", trust=True)):
        np.testing.assert_array_equal(loaded.score(0, 1), predictor.score(0, 1))
    trusted = Predictor.from_checkpoint(path, data_module(), trust=True)
    assert_equal(trusted._live.task.state_dict(), task.state_dict())
    refused = (
        r"(task|model|message) in .* must be given, .* got 'tests.tasks.own_parts.\w+'; give (task|model|message) "
    )
    with pytest.raises(CheckpointError, match=refused + "yourself, or pass trust=True"):
        Predictor.from_checkpoint(path, data_module())
    with pytest.raises(CheckpointError, match=refused):
        Predictor.load(tmp_path / "served.pt")

    kind = given.get("task", LinkPrediction)
    again = kind.load_from_checkpoint(path, **{part: arguments[part] for part in given if part != "task"})
    assert_equal(again.state_dict(), task.state_dict())


def test_a_checkpoint_of_an_own_model_holds_its_path_and_wants_its_class(fitted):
    task, _, folder = fitted("settings")
    path = folder / "end.ckpt"
    saved = torch.load(path, weights_only=True)
    told = {"class_path": "tests.tasks.own_parts.MeanModel", "init_args": {"width": 5}}
    assert saved["hyper_parameters"]["model"] == told
    assert task.hparams_initial["model"] == told
    assert saved["lightning_tgnn"]["task"] == "LinkPrediction"
    with pytest.raises(CheckpointError, match=r"model in .* must be given, .*MeanModel'; give model yourself"):
        LinkPrediction.load_from_checkpoint(path)
    with pytest.raises(CheckpointError, match="task must be a class of tasks on event streams, got 'Linear'"):
        Predictor.from_checkpoint(path, data_module(), task=nn.Linear)
    with pytest.raises(InvalidArgumentError, match="argument must be one that LinkPrediction takes, got 'modle'; corr"):
        Predictor.from_checkpoint(path, data_module(), modle=MeanModel)


@pytest.fixture
def my_parts(tmp_path, monkeypatch):
    """A folder whose ``my_parts.py`` Python finds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lightning-tgnn"])
    (tmp_path / "my_parts.py").write_text(Path(own_parts.__file__).read_text())
    yield tmp_path
    sys.modules.pop("my_parts", None)


def recipe(folder, task="lightning_tgnn.LinkPrediction", **arguments):
    stream = {"num_events": 200, "num_sources": 20, "num_destinations": 20}
    sampler = {"class_path": "my_parts.Near", "init_args": {"among": 4}}
    data = {"negatives": "my_parts.near", "eval_negatives": sampler, "synthetic": stream}
    quiet = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False, "enable_progress_bar": False}
    written = {
        "trainer": quiet,
        "model": {"class_path": task, "init_args": arguments},
        "data": {"class_path": "lightning_tgnn.TemporalDataModule", "init_args": data},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
    return ["fit", "--config=recipe.yaml", "--test_after_fit=false"]


@pytest.mark.parametrize(
    ("arguments", "own"),
    [
        ({"model": "my_parts.MeanModel"}, ["--model=my_parts.MeanModel"]),
        ({"model": {"class_path": "my_parts.MeanModel", "init_args": {"width": 5}}}, ["--model=my_parts.MeanModel"]),
        (
            {"model": "jodie", "message": {"class_path": "my_parts.GatedMessage", "init_args": {"width": 4}}},
            ["--message=my_parts.GatedMessage"],
        ),
        ({"task": "my_parts.OwnLinks", **SMALL}, ["--task=my_parts.OwnLinks"]),
    ],
)
def test_recipes_take_them_by_path_and_predict_too(my_parts, in_own_group, arguments, own):
    run = TGNNCommand(recipe(my_parts, **arguments))
    near, of_evaluation = run.datamodule.negatives, run.datamodule.eval_negatives
    assert (near.__name__, type(of_evaluation).__name__, of_evaluation.among) == ("near", "Near", 4)
    (checkpoint,) = my_parts.rglob("*.ckpt")
    torch.load(checkpoint, weights_only=True)
    (my_parts / "pairs.csv").write_text("src,dst\n0,1\n2,3\n")
    ask = ["predict", f"--ckpt_path={checkpoint}", "--score=pairs.csv"]
    main([*ask, "--output=given.csv", "--save=served.pt", *own])
    main([*ask, "--output=trusted.csv", "--trust=true"])
    main(["predict", "--ckpt_path=served.pt", "--score=pairs.csv", "--output=served.csv", *own])
    written = {name: (my_parts / f"{name}.csv").read_text() for name in ("given", "trusted", "served")}
    assert len(set(written.values())) == 1
    with pytest.raises(SystemExit, match=r"got 'my_parts.*yourself, or pass trust=True"):
        main([*ask, "--output=refused.csv"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "my_parts.Nothing"}, "model must be the import path of a class, got 'my_parts.Nothing'; check the"),
        ({"message": "my_parts.Nothing"}, "message must be the import path of a class, got 'my_parts.Nothing'; che"),
        (
            {"model": {"class_path": "torch.nn.Identity"}},
            "model must be built as a MemoryModel, .*, got 'a Identity'",
        ),
    ],
)
def test_paths_in_recipes_that_name_something_else_are_refused(my_parts, in_own_group, arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(recipe(my_parts, **arguments))


def test_a_path_that_names_no_task_is_refused(my_parts, fitted):
    (my_parts / "pairs.csv").write_text("src,dst\n0,1\n")
    ask = ["predict", f"--ckpt_path={fitted('task')[2] / 'end.ckpt'}", "--score=pairs.csv", "--output=a.csv"]
    with pytest.raises(SystemExit, match=r"task must be the import path of a class, got 'my_parts.Nothing';"):
        main([*ask, "--task=my_parts.Nothing"])


@pytest.mark.parametrize("kind", [EdgeClassification, DynamicNodeClassification])
def test_it_tells_labels_too(tmp_path, kind):
    labels = torch.arange(len(STORE)) % 2
    store = EventStore.from_arrays(STORE.src, STORE.dst, STORE.time, STORE.edge_features, labels=labels)
    for arguments in ({"model": MeanModel, "dropout": 0.2}, {**SMALL, "message": GatedMessage}):
        task, run = kind(hidden_dim=6, **arguments), trainer(max_epochs=1)
        run.fit(task, datamodule=data_module(store=store))
        run.save_checkpoint(tmp_path / "a.ckpt")
        own = {name: value for name, value in arguments.items() if name in ("model", "message")}
        loaded = kind.load_from_checkpoint(tmp_path / "a.ckpt", **own)
        (metrics,) = trainer().test(task, datamodule=data_module(store=store), verbose=False)
        assert trainer().test(loaded, datamodule=data_module(store=store), verbose=False) == [metrics]
        assert Predictor.from_checkpoint(tmp_path / "a.ckpt", data_module(store=store), **own).embed(0).shape[0] == 1


def test_a_message_of_all_three_parts_side_by_side_is_none():
    def side_by_side(memory_dim, edge_dim):
        return lambda own, other, features: torch.cat([own, other, features], dim=1)

    ends = []
    for message in (None, side_by_side):
        torch.manual_seed(1)
        task = LinkPrediction(**SMALL, message=message, lr=1e-2)
        trainer().fit(task, datamodule=data_module())
        ends.append(task.state_dict())
    for key, value in ends[0].items():
        torch.testing.assert_close(ends[1][key], value, rtol=1e-3, atol=1e-5)


def test_what_a_task_mails_reaches_a_model_of_ours():
    torch.manual_seed(1)
    plain, own = LinkPrediction(**SMALL), OwnLinks(**SMALL)
    data = data_module()
    data.setup()
    own.build(data.info)
    plain.build(data.info)
    assert (plain.state_spec.own_half, plain.state_spec.event_features) == (True, True)
    assert (own.state_spec.own_half, own.state_spec.event_features) == (False, False)
    trainer(max_epochs=1).fit(own, datamodule=data)
    nodes = torch.arange(16)
    rows = own.fetch(nodes).wait()
    halved = vars(rows) | {"mails": rows.mails.clone()}
    halved["mails"][..., :8] *= 0.5  # the half that a model of ours otherwise need not look at
    with torch.no_grad():
        assert not torch.equal(own.apply_mail(rows).memory, own.apply_mail(type(rows)(**halved)).memory)


@pytest.mark.parametrize("sampler", [near, Near(), Near(among=5)])
def test_a_sampler_of_ones_own_draws_the_same_however_batches_are_made(sampler):
    def drawn(**options):
        data = data_module(negatives=sampler, num_train_negatives=2, held_out_nodes=0.2, seed=3, **options)
        found = {}
        for part, loader in {"train": data.train_dataloader(), "val": data.val_dataloader()}.items():
            for epoch in (0, 1):
                loader.set_epoch(epoch)
                found[part, epoch] = torch.cat([batch.negatives for batch in loader])
        return data, found

    data, found = drawn()
    for options in ({"batch_size": 7, "num_workers": 0}, {"presample": "epoch"}, {"num_workers": 2}):
        assert_equal(drawn(**options)[1], found)
    assert not torch.equal(found["train", 0], found["train", 1])
    assert torch.equal(found["val", 0], found["val", 1])
    held_out = data.split.held_out.nonzero().squeeze(1)
    assert len(held_out)
    assert not torch.isin(found["train", 0], held_out).any()
    parts = [
        torch.cat([batch.negatives for batch in data.train_dataloader().follow(DataParallel(), RankLayout.of(2), rank)])
        for rank in (0, 1)
    ]
    assert sorted(torch.cat(parts).tolist()) == sorted(found["train", 0].tolist())


def test_evaluation_may_have_another_sampler():
    data = data_module(eval_negatives=near, num_workers=0)
    assert torch.cat([batch.negatives for batch in data.val_dataloader()]).max() <= 8
    assert torch.cat([batch.negatives for batch in data.train_dataloader()]).max() > 8
    task = LinkPrediction(MeanModel)
    run = trainer(max_epochs=1)
    run.fit(task, datamodule=data)
    assert 0 < run.callback_metrics["val/mrr"] <= 1


class Wide(MeanModel):
    def update_memory(self, rows):
        return torch.zeros(len(rows.memory), 9)


class Whole(MeanModel):
    def update_memory(self, rows):
        return rows.mail_event


class Few(MeanModel):
    def embed(self, updated, batch):
        return updated.memory[batch.root_index]  # 6 wide, 7 announced


class Mailless(MeanModel):
    def mail(self, own, other, features):
        return None


class Bare(MemoryModel):
    def __init__(self, info):
        super().__init__(info, memory_dim=4, embedding_dim=4)


def sized(**sizes):
    return lambda info: MeanModel(info, **sizes)


def flat(memory_dim, edge_dim):
    return lambda own, other, features: own.sum(1)


MISUSE = [
    (
        {"model": MeanModel, "memory_dim": 8},
        "memory_dim must be left out beside a model of your own, got 8; give",
    ),
    ({"model": MeanModel, "dropout": 0.3}, "dropout must be left out beside a model of your own, got 0.3"),
    ({"model": MeanModel, "message": GatedMessage}, "message must be left out beside a model of your own"),
    ({"model": MeanModel(data_module().info)}, "model must be what builds a StreamModel, .* got 'MeanModel'; give a"),
    ({"model": "tgm"}, "model must be what builds a StreamModel, or one of 'apan', .*, got 'tgm'; did"),
    ({"model": "own.Nothing"}, "model must be the import path of a class, got 'own.Nothing'; check the name, and that"),
    (
        {"model": nn.Linear},
        "model must be called with the info of the data alone, got \"Linear: missing .*'out_features'\"; write",
    ),
    ({"model": 7}, "model must be what builds a StreamModel, .* got 'int'"),
    (
        {"model": lambda info: nn.Linear(2, 2)},
        "model must be built as a MemoryModel, StreamModel or PairModel, got 'a Linear'; subclass",
    ),
    ({"model": lambda info: 7}, "model must be built as a MemoryModel, StreamModel or PairModel, got 'a int'"),
    ({"model": sized(width=0)}, "memory_dim must be an integer of at least 1, got 0"),
    ({"model": sized(sampled_roots="some")}, "sampled_roots must be one of 'all', 'events', 'none', got 'some'"),
    ({"model": sized(mailbox_size=0)}, "mailbox_size must be an integer of at least 1, got 0"),
    ({"model": sized(mail_dim=9)}, "mail_dim must be left out beside the mail of MemoryModel, got 9; override mail"),
    (
        {"model": Wide},
        r"the result of Wide.update_memory must be .* tensor of shape \[\d+, 6\], got '.*9\]",
    ),
    ({"model": Whole}, r"the result of Whole.update_memory must be a floating-point tensor .* got 'torch.int64"),
    ({"model": Few}, r"the result of Few.embed must be a floating-point tensor of shape \[60, 7\], got '.*60, 6\]'"),
    ({"model": Mailless}, r"the result of Mailless.mail must be a floating-point tensor .* got 'NoneType'"),
    ({"message": nn.Linear(2, 2)}, "message must be what builds a module for two widths, got 'Linear'; give the class"),
    ({"message": "own.Message"}, "message must be the import path of a class, got 'own.Message'; check the name, and"),
    ({"message": "gated"}, "message must be what builds a module for two widths, got 'gated'"),
    (
        {"message": lambda width: None},
        "message must be what builds a function, called with memory_dim=8 and edge",
    ),
    ({"message": lambda width, edges: 7}, "message must be what builds a function, .* got 'int'; give the class of"),
    ({"message": nn.Linear}, r"the function of message must be called with memory, memory and features of shapes"),
    ({"message": flat}, r"the result of message must be a floating-point tensor of shape \[3, 1\], got '.*\[3\]'"),
]


@pytest.mark.parametrize(("arguments", "message"), MISUSE, ids=[message[:50] for _, message in MISUSE])
def test_misuse_of_models_and_messages_is_refused(arguments, message):
    sizes = {} if "model" in arguments else SMALL
    with pytest.raises(InvalidArgumentError, match=message):
        trainer(max_epochs=1).fit(LinkPrediction(**sizes, **arguments), datamodule=data_module())


class Double(MeanModel):
    def embed(self, updated, batch):
        return super().embed(updated, batch) * torch.ones_like(batch.neighbor_time[:, :1])


def test_embeddings_may_be_computed_with_times_in_64_bits():
    metrics = []
    for model in (MeanModel, Double):
        pl.seed_everything(0, verbose=False)
        run = trainer(max_epochs=1)
        run.fit(LinkPrediction(model), datamodule=data_module())
        metrics.append(float(run.callback_metrics["val/ap"]))
    assert metrics[0] == metrics[1]


class OneTensor(LinkPrediction):
    def score(self, embeddings, batch):
        return super().score(embeddings, batch)[0]


class Column(LinkPrediction):
    def score(self, embeddings, batch):
        positive, negatives = super().score(embeddings, batch)
        return positive.unsqueeze(1), negatives


class NoNegatives(LinkPrediction):
    def score(self, embeddings, batch):
        positive, negatives = super().score(embeddings, batch)
        return positive, negatives[:, :0]


class PerEvent(LinkPrediction):
    def loss(self, positive, negatives):
        return torch.nn.functional.softplus(1 - positive)


class Nothing(LinkPrediction):
    def embed(self, updated, batch):
        return None


class OneLogit(EdgeClassification):
    def score(self, embeddings, batch):
        return super().score(embeddings, batch)[:, 0]


class LossOfEach(EdgeClassification):
    def loss(self, logits, labels):
        return logits.square()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OneTensor, r"the result of score must be logits .* \[20\] and .* \[20, 1\], got '\[20\]'; return"),
        (Column, r"the result of score must be logits .*, got '\[20, 1\] and \[20, 1\]'; return"),
        (NoNegatives, r"the result of score must be logits .*, got '\[20\] and \[20, 0\]'; return"),
        (PerEvent, r"the result of loss must be a tensor of one number, got \[20\]; return a mean"),
        (Nothing, r"the result of embed must be a row for each of the 60 candidates, got 'NoneType'"),
        (OneLogit, r"the result of score must be logits \[20, outputs\], got \[20\]; return a row for each"),
        (LossOfEach, r"the result of loss must be a tensor of one number, got \[20, 2\]; return a mean"),
    ],
)
def test_what_a_task_of_ones_own_returns_is_checked(kind, message):
    labelled = EventStore.from_arrays(STORE.src, STORE.dst, STORE.time, STORE.edge_features, labels=np.arange(160) % 2)
    with pytest.raises(InvalidArgumentError, match=message):
        trainer(max_epochs=1).fit(kind(**SMALL), datamodule=data_module(store=labelled))


class FirstNegative(LinkPrediction):
    def score(self, embeddings, batch):
        positive, negatives = super().score(embeddings, batch)
        return positive, negatives[:, :1]


def test_a_score_of_fewer_negatives_than_there_are_is_refused():
    message = r"the result of score must be logits .* \[20, 3\], got '\[20\] and \[20, 1\]'; return"
    with pytest.raises(InvalidArgumentError, match=message):
        trainer(max_epochs=1).fit(FirstNegative(**SMALL), datamodule=data_module(num_train_negatives=3))


def test_a_stage_that_is_missing_is_named():
    with pytest.raises(NotImplementedError, match=r"Bare\.update_memory"):
        trainer(max_epochs=1).fit(LinkPrediction(Bare), datamodule=data_module())


def drawing(make):
    return lambda events, num, candidates, **others: make(events, num, candidates)


SAMPLERS = [
    ("near", "negatives must be one of 'all', 'destination', 'historical', 'inductive', 'relation', got 'near'"),
    ("own.near", "negatives must be the import path of a class, got 'own.near'; check the name, and that Python finds"),
    (
        lambda src, dst: src,
        "negatives must be called with src, dst, time, events, seed, epoch, num, cand",
    ),
    (drawing(lambda events, num, _: torch.zeros(len(events), num)), r"int64 of shape \[64, 3\], .* got 'torch.float32"),
    (drawing(lambda events, num, _: torch.zeros(len(events)).long()), r"shape \[64, 3\], .* got 'torch.int64 \[64\]'"),
    (
        drawing(lambda events, num, _: None),
        "what negatives returns must be int64 of .* got 'NoneType'; draw by",
    ),
    (
        drawing(lambda events, num, _: torch.full((len(events), num), 16)),
        r"row 0 must be one of .* \[16, 16, 16\]",
    ),
    (drawing(lambda events, num, _: torch.full((len(events), num), -1)), r"row 0 must be one of the 16 candidates"),
    (
        drawing(lambda events, num, all_: all_[torch.randint(16, (len(events), num))]),
        "negatives must be a function of seed, epoch and event alone, got 'other draws where the first event is left",
    ),
    (
        drawing(
            lambda events, num, all_: all_[random_below(16, torch.arange(len(events)).unsqueeze(1), torch.arange(num))]
        ),
        "negatives must be a function of seed, epoch and event alone",
    ),
]


@pytest.mark.parametrize(("sampler", "message"), SAMPLERS, ids=[message[:50] for _, message in SAMPLERS])
def test_misuse_of_samplers_is_refused(sampler, message):
    with pytest.raises(InvalidArgumentError, match=message):
        data_module(negatives=sampler).train_dataloader()


def test_held_out_nodes_are_not_drawn_in_training():
    everyone = drawing(lambda events, num, _: random_below(16, events.unsqueeze(1), torch.arange(num)))
    data = data_module(negatives=everyone, held_out_nodes=0.2)
    with pytest.raises(InvalidArgumentError, match=r"row \d+ must be one of the 1\d candidates, .* held-out nodes are"):
        data.train_dataloader()


@pytest.mark.parametrize(
    ("task", "unused", "kept"),
    [
        (LinkPrediction, {"memory_dim", "embedding_dim", "time_dim", "num_heads", "mailbox_size", "dropout"}, {"lr"}),
        (EdgeClassification, {"memory_dim", "time_dim", "message"}, {"hidden_dim", "dropout"}),
        (NodeClassification, {"hidden_dim", "num_layers", "heads", "dropout", "layer_norm"}, {"lr"}),
        (SnapshotLinkPrediction, {"hidden_dim", "num_layers", "convolution", "cell"}, {"lr"}),
    ],
)
def test_settings_that_an_own_model_does_not_see_are_not_recorded(task, unused, kept):
    assert unused | kept <= task().hparams.keys()
    recorded = task(MeanModel).hparams.keys()
    assert kept <= recorded
    assert not unused & recorded
