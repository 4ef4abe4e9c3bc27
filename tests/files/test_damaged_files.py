"""Damaged files: a flipped bit or a cut is one sentence at every door, or changes nothing."""

import random
import re

import pytest
import torch

from lightning_tgnn import (
    DynamicNodeClassification,
    EdgeClassification,
    LinkPrediction,
    NodeClassification,
    Predictor,
)
from lightning_tgnn.__main__ import main
from lightning_tgnn.checks import CheckpointError, InvalidArgumentError
from lightning_tgnn.files.checkpoints import WholeCheckpointIO
from lightning_tgnn.files.partitions import given_partition, save_partition
from lightning_tgnn.serving.saved_predictor import is_saved_predictor
from lightning_tgnn.tasks import LayerLinkPrediction
from tests.data.example_streams import random_store
from tests.serving.runs import SMALL, data_module, fitted, trainer

SENTENCE = (
    r"damaged\.\w+ must be (a complete checkpoint|a checkpoint|a saved Predictor)[^\n]*; give a file that was written"
)
FLIPS, CUTS = 50, 30


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A folder with a checkpoint and a saved predictor, and the stream's DataModule."""
    folder = tmp_path_factory.mktemp("damaged")
    data = data_module(random_store(120, num_nodes=12))
    fitted(folder / "right.ckpt", data)
    Predictor.from_checkpoint(folder / "right.ckpt", data).save(folder / "right.pt")
    return folder, data


def damaged(right, path, *, flips, cuts, seed=0):
    """Write one damaged form of a file after the other to ``path``; yield how it was damaged."""
    whole, rng = right.read_bytes(), random.Random(seed)
    for _ in range(flips):
        place, bit = rng.randrange(len(whole)), rng.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        yield f"bit {bit} of byte {place}"
    for _ in range(cuts):
        length = rng.randrange(len(whole))
        path.write_bytes(whole[:length])
        yield f"cut to {length}"


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def refused_or_same(read, right, path, **kinds):
    """Count the refusals; whatever is not refused is what was written."""
    expected, refused = read(right), 0
    for kind in damaged(right, path, **kinds):
        try:
            found = read(path)
        except CheckpointError as error:
            said, refused = str(error), refused + 1
        else:
            said = ""
            assert not kind.startswith("cut"), kind
            assert same(expected, found), kind
        assert "\n" not in said, kind
    return refused


@pytest.mark.parametrize("seed", [0, 1])
def test_no_damage_is_loaded_as_another_checkpoint(held, tmp_path, seed):
    folder, _ = held
    read = WholeCheckpointIO().load_checkpoint
    kinds = {"flips": 4 * FLIPS, "cuts": CUTS, "seed": seed}
    assert refused_or_same(read, folder / "right.ckpt", tmp_path / "damaged.ckpt", **kinds) > FLIPS + CUTS


def test_no_damage_is_loaded_as_other_weights(held, tmp_path):
    folder, _ = held
    load = LinkPrediction.load_from_checkpoint.__func__  # without Lightning's look at the stack, which takes long
    read = lambda path: load(LinkPrediction, path).state_dict()  # noqa: E731
    refused_or_same(read, folder / "right.ckpt", tmp_path / "damaged.ckpt", flips=FLIPS, cuts=CUTS)


def test_no_damage_is_loaded_as_another_predictor(held, tmp_path):
    folder, _ = held
    read = lambda path: Predictor.load(path)._state.state_dict()  # noqa: E731
    refused_or_same(read, folder / "right.pt", tmp_path / "damaged.pt", flips=FLIPS, cuts=CUTS)


def loaded(kind):
    return lambda path, data: kind.load_from_checkpoint(path)


def run(method):
    def through_the_trainer(path, data):
        getattr(trainer(), method)(LinkPrediction("tgn", **SMALL), datamodule=data, ckpt_path=path)

    return through_the_trainer


def command(name, *arguments):
    return lambda path, data: main([name, f"--ckpt_path={path}", *arguments])


KINDS = (LinkPrediction, LayerLinkPrediction, EdgeClassification, DynamicNodeClassification, NodeClassification)
DOORS = {
    **{f"{kind.__name__}.load_from_checkpoint": loaded(kind) for kind in KINDS},
    **{f"Trainer.{method}": run(method) for method in ("fit", "validate", "test", "predict")},
    "an open file": lambda path, data: LinkPrediction.load_from_checkpoint(path.open("rb")),
    "Predictor.from_checkpoint": lambda path, data: Predictor.from_checkpoint(path, data),
    "lightning-tgnn predict": command("predict", "--score=pairs.csv", "--output=scores.csv"),
    **{f"lightning-tgnn {name}": command(name) for name in ("fit", "validate", "test")},
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_says_the_same_of_damage(door, held, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lightning-tgnn"])
    (tmp_path / "pairs.csv").write_text("src,dst\n1,2\n")
    folder, data = held
    whole, path = (folder / "right.ckpt").read_bytes(), tmp_path / "damaged.ckpt"
    weights = torch.load(folder / "right.ckpt", weights_only=True)["state_dict"]
    place = whole.index(next(weight for weight in weights.values() if weight.dim() == 2).numpy().tobytes()) + 3
    for content in (whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :], whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with pytest.raises((CheckpointError, SystemExit)) as refused:
            DOORS[door](path, data)
        message = "an open file" if door == "an open file" else SENTENCE
        assert door == "an open file" or re.search(message, str(refused.value)), refused.value


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int16])
def test_partitions_of_every_kind_of_integer_are_read_right(tmp_path, dtype):
    owner = torch.tensor([0, 1, 2, 1, 0, 2], dtype=torch.int64)
    save_partition(tmp_path / "owner.pt", owner.to(dtype), 3, "hash", "0")
    assert torch.equal(given_partition(tmp_path / "owner.pt", "nodes", 6, 3, None, ["hash"]).long(), owner)


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        (
            torch.tensor([0, 2**64 - 1], dtype=torch.uint64),
            r"partition must be ranks in 0 \.\. 1, got 92233720368547",
        ),
        (torch.tensor([0, 2**32 - 1], dtype=torch.uint32), r"partition must be ranks in 0 \.\. 1, got 4294967295"),
        (torch.tensor([0, 2**16 - 1], dtype=torch.uint16), r"partition must be ranks in 0 \.\. 1, got 65535"),
        (torch.tensor([0, 1], device="meta"), r"partition must be of values, got 'a tensor without any'"),
        (
            torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8),
            r"partition must be of integers, got '.*qu",
        ),
    ],
)
def test_partitions_that_are_none_are_refused_in_words(tmp_path, owner, message):
    save_partition(tmp_path / "owner.pt", owner, 2, "hash", "0")
    with pytest.raises(InvalidArgumentError, match=message):
        given_partition(tmp_path / "owner.pt", "nodes", 2, 2, None, ["hash"])


def test_damaged_partitions_are_refused(tmp_path):
    owner = torch.arange(64) % 2
    save_partition(tmp_path / "right.pt", owner.to(torch.uint64), 2, "hash", "0")
    for kind in damaged(tmp_path / "right.pt", tmp_path / "damaged.pt", flips=FLIPS, cuts=CUTS):
        try:
            found = given_partition(tmp_path / "damaged.pt", "nodes", 64, 2, None, ["hash"])
        except InvalidArgumentError as error:
            said = str(error)
        else:
            said = ""
            assert torch.equal(found, owner), kind
        assert "\n" not in said, kind


def test_a_damaged_file_is_no_saved_predictor(held, tmp_path):
    folder, _ = held
    assert is_saved_predictor(folder / "right.pt")
    (tmp_path / "cut.pt").write_bytes((folder / "right.pt").read_bytes()[:100])
    assert not is_saved_predictor(tmp_path / "cut.pt")
