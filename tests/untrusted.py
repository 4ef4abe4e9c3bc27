"""Checkpoints and saved predictors that try to run code, to write or to download, though nothing in them is pickled."""

import copy
import pickle

import torch

EVIL = """
import os, torch
open(os.environ["EVIL_MARKER"], "a").write("imported ")

class Layer(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        open(os.environ["EVIL_MARKER"], "a").write("called ")

class Task(Layer):
    pass

def make(*args, **kwargs):
    open(os.environ["EVIL_MARKER"], "a").write("made ")
"""
INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"
LAYER_TASK = "lightning_tgnn.tasks.LayerLinkPrediction"


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def with_arguments(checkpoint, **arguments):
    """Return a checkpoint, or a saved predictor, whose hyperparameters are others."""
    changed = copy.deepcopy(checkpoint)
    changed["hyper_parameters"] = {**changed["hyper_parameters"], **arguments}
    return changed


def with_recipe(checkpoint, **recipe):
    changed = copy.deepcopy(checkpoint)
    if "lightning_tgnn" in changed:
        changed["lightning_tgnn"]["data"] = {**changed["lightning_tgnn"]["data"], **recipe}
    return changed


def with_task(checkpoint, name):
    changed = copy.deepcopy(checkpoint)
    changed.get("lightning_tgnn", changed)["task"] = name
    return changed


def plant(folder, marker):
    """Make a root in which the files of py-tgb are pickles that run code, and a store without its adjacency."""
    place = folder / "tgb" / "tgbl_wiki"
    place.mkdir(parents=True)
    for name in ("ml_tgbl-wiki.pkl", "ml_tgbl-wiki_edge.pkl", "ml_tgbl-wiki_node.pkl", "tgbl-wiki_val_ns_v2.pkl"):
        (place / name).write_bytes(pickle.dumps(Evil(marker)))
    for name in ("tgbl-wiki_edgelist.csv", "tgbl-wiki_edgelist_v2.csv"):
        (place / name).write_text("user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n")


def crafted(layers, marker, root, store):
    """Return crafted files by name, made of one with a layer.

    Args:
        layers: Checkpoint or saved predictor of a `LayerLinkPrediction`.
        marker: What appears if one of them runs code.
        root: Where `plant` has been.
        store: Folder of an event store.
    """
    evaluated = {"input_args": f"x: __import__('pathlib').Path({str(marker)!r}).touch()", "modules": []}
    sequential = {"layer": "torch_geometric.nn.Sequential", "layer_args": evaluated}
    described = {"class_path": "evil_module.Layer", "init_args": {}}
    cli = {"_instantiator": INSTANTIATOR}
    by_command = {"_class_path": LAYER_TASK, **cli}
    given = layers["hyper_parameters"]["layer_args"]
    return {
        "evaluated argument": with_arguments(layers, **sequential),
        "evaluated argument, by the command": with_arguments(layers, _class_path=LAYER_TASK, **sequential, **cli),
        "layer of another module": with_arguments(layers, layer="evil_module.Layer", layer_args={}),
        "layer of no module": with_arguments(layers, layer="evil_module", layer_args={}),
        "function as a layer": with_arguments(layers, layer="os.mkdir", layer_args={"path": str(root / "made")}),
        "object in an argument": with_arguments(layers, layer_args={**given, "in_channels": described}),
        "object in a list": with_arguments(layers, layer_args={**given, "aggr": [described]}, **cli),
        "path as a word": with_arguments(layers, layer_args={**given, "aggr": "evil_module.Layer"}),
        "object as the layer": with_arguments(layers, layer=described, **cli),
        "object as a width": with_arguments(layers, memory_dim=described, **cli),
        "model of another module": with_arguments(layers, model="evil_module.Layer", **cli),
        "object as the model": with_arguments(
            layers, model=described, _class_path="lightning_tgnn.LinkPrediction", **cli
        ),
        "own model of a graph": with_arguments(
            layers, model=described, _class_path="lightning_tgnn.NodeClassification", **cli
        ),
        "class of another module": with_arguments(layers, _class_path="evil_module.Task", **cli),
        "class path that is none": with_arguments(layers, _class_path=["evil_module.Task"], **cli),
        "another instantiator": with_arguments(layers, _instantiator="evil_module.make"),
        "arguments in the form of a configuration": {**layers, "hyper_parameters": dict(described)},
        "arguments under older names": {**layers, "hparams": sequential, "module_arguments": sequential},
        "arguments that are none": {**layers, "hyper_parameters": [("layer", "evil_module.Layer")]},
        "task of another module": with_task(layers, "evil_module.Task"),
        "task that is a module": with_task(layers, "layer_link_prediction"),
        "task that is none": with_task(layers, ["LinkPrediction"]),
        "pickled stream": with_recipe(layers, source="tgbl-wiki", root=str(root)),
        "pickled stream, in capitals": with_recipe(layers, source="TGBL-Wiki", root=str(root)),
        "stream to download": with_recipe(layers, source="wikipedia", root=str(root / "new" / "root")),
        "store to write into": with_recipe(layers, source=str(store), root=str(root / "new")),
        "folder to draw ahead in": with_recipe(layers, presample="epoch", presample_dir=str(root / "drawn")),
        "recipe that is none": with_recipe(layers, source=["synthetic"], synthetic="evil_module.make"),
        "description of the DataModule": {
            **layers,
            "datamodule_hyper_parameters": {
                "source": "tgbl-wiki",
                "root": str(root),
                **cli,
                "_class_path": "evil_module.Task",
            },
        },
        "optimizer of another module": with_arguments(layers, optimizer="evil_module.make", **by_command),
        "schedule of another module": with_arguments(layers, lr_scheduler="evil_module.make", **by_command),
        "groups by another module": with_arguments(layers, param_groups="evil_module.make", **by_command),
        "text of an error": with_arguments(
            layers, memory_dim="class_path 'evil_module.Layer':  Option 'a' is not accepted", **by_command
        ),
        "object": {**copy.deepcopy(layers), "evil": Evil(marker)},
    }


def write(files, folder):
    """Save them, and return their paths by name."""
    folder.mkdir()
    paths = {name: folder / f"{name}.ckpt" for name in files}
    for name, held in files.items():
        torch.save(held, paths[name])
    return paths
