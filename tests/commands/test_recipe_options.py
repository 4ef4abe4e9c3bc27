"""Recipes of `fit` in commands that compare strategies."""

from pathlib import Path

import pytest
import yaml

from lightning_tgnn.checks import InvalidArgumentError
from lightning_tgnn.commands.bench import events, graph, snapshots
from lightning_tgnn.commands.plan.events import event_options
from lightning_tgnn.commands.shared.recipe_options import with_recipes_as_options

RECIPES = Path(__file__).parents[2] / "recipes"
OPTIONS = {
    "TemporalDataModule": events.event_options,
    "FullGraphDataModule": graph.graph_options,
    "SnapshotDataModule": snapshots.snapshot_options,
}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_bench_and_plan_take_data_and_model_of_a_recipe(path):
    recipe = yaml.safe_load(path.read_text())
    task, data = (recipe[name]["class_path"].rpartition(".")[2] for name in ("model", "data"))
    given = ["--steps=7", f"--config={path}"]
    if task not in ("LinkPrediction", "NodeClassification", "SnapshotLinkPrediction"):
        with pytest.raises(InvalidArgumentError, match=f"got '{task} on {data}'; give the options themselves"):
            with_recipes_as_options(given)
        return
    words = with_recipes_as_options(given[1:] if data != "TemporalDataModule" else given)
    sections = OPTIONS[data]().parse(words)
    assert with_recipes_as_options(["--config", str(path)]) == [word for word in words if word != "--steps=7"]
    for name in ("model", "data"):
        wanted = recipe[name].get("init_args", {})
        if data == "SnapshotDataModule":
            wanted.pop("batch_size", None)
        taken = {name: value for section in sections for name, value in section.items() if name in wanted}
        assert taken.keys() == wanted.keys()
        assert {name: taken[name] for name, value in wanted.items() if isinstance(value, int | str)} == {
            name: value for name, value in wanted.items() if isinstance(value, int | str)
        }
    if data == "TemporalDataModule":
        sections = event_options().parse([*with_recipes_as_options(given), "--batch_size=33"])
        assert sections[2]["batch_size"] == 33
        assert sections[1]["devices"] == recipe["trainer"].get("devices", 2)


def test_a_file_of_options_stays_one(tmp_path):
    (tmp_path / "own.yaml").write_text("steps: 5\n")
    for given in ([f"--config={tmp_path}/own.yaml"], ["--config=missing.yaml"], ["--source=a", "--config="]):
        assert with_recipes_as_options(given) == given


def test_a_recipe_may_write_a_class_alone_and_numbers_as_it_likes(tmp_path):
    path = tmp_path / "own.yaml"
    data = "data: {class_path: lightning_tgnn.TemporalDataModule, init_args: {source: synthetic}}\n"
    path.write_text(f"{data}model: LinkPrediction\n")
    assert with_recipes_as_options([f"--config={path}"]) == ["--kind=events", "--source=synthetic"]
    path.write_text(f"{data}model: {{class_path: LinkPrediction, init_args: {{lr_scheduler: {{gamma: 1e-4}}}}}}\n")
    assert with_recipes_as_options([f"--config={path}"])[-1] == '--lr_scheduler={"gamma": 0.0001}'
    path.write_text(f"{data}model: {{class_path: mine.LinkPrediction}}\n")
    with pytest.raises(InvalidArgumentError, match=r"got 'mine\.LinkPrediction on TemporalDataModule'"):
        with_recipes_as_options([f"--config={path}"])
    path.write_text(f"{data}model: {{class_path: LinkPrediction, init_args: {{lr: 1, lr: 2}}}}\n")
    with pytest.raises(InvalidArgumentError, match="a recipe with each setting once"):
        with_recipes_as_options([f"--config={path}"])
