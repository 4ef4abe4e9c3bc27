"""The options of ``lightning-tgnn predict``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int
from lightning_tgnn.serving.node_numbers import SIDES
from lightning_tgnn.serving.tables import check_suffix

DESCRIPTION = """Answer questions with a trained model, in the ids of its stream: CSV, gzipped or not, or Parquet.

  lightning-tgnn predict --ckpt_path CKPT --score pairs.csv --output scores.csv         src,dst,time: a probability each
  lightning-tgnn predict --ckpt_path CKPT --top_k users.csv --k 10 --output top.parquet src,time: the best destinations
  lightning-tgnn predict --ckpt_path CKPT --embed nodes.parquet --output vectors.csv    node,time: a vector each
  lightning-tgnn predict --ckpt_path CKPT --classify events.csv --output classes.csv    src,dst,time, edge features: the
                                                                                        class and its probabilities
  lightning-tgnn predict --ckpt_path CKPT --vertices graph.npz --output classes.csv     a static graph: the class of
                                                                                        every vertex, and probabilities

Without a column time a question is about the time of the latest event; one about an earlier time has no answer. Times
are numbers or dates, and answers have dates where the stream of training had them. The model first takes in the whole
stream that it was trained on, which the checkpoint names, then the events of --events. The column status of an answer
says "ok", or what is wrong with that question alone: a node without any event so far, an early time, no candidate left.
"""

QUESTIONS = {"score": ("src", "dst"), "top_k": ("src",), "embed": ("node",), "classify": ("src", "dst")}
"""Columns of ids, by the option that takes the table."""


@dataclass(frozen=True)
class PredictOptions:
    """What to answer.

    Args:
        ckpt_path: A checkpoint of a run, or what `Predictor.save` has written.
        score: Table of pairs, columns src, dst and time: the probability of each.
        top_k: Table of sources, columns src and time: the k most probable destinations of each.
        embed: Table of nodes, columns node and time: the embedding of each.
        classify: Table of events, columns src, dst, time and the edge features of training by their names: the class of
            each, and the probability of every class. For models of labels of events.
        vertices: Static graph, a source of `FullGraphDataModule`: the class of every vertex, and the probability of
            every class. It may have gained vertices and edges since training.
        output: Where the answers go; the ending, .csv, .csv.gz or .parquet, says how.
        quotes_formulas: Put ' before texts in a CSV that a spreadsheet would run as formulas, such as =cmd.
        k: Destinations per source.
        candidates: Table with the column dst: destinations to choose from, each once; all so far if None.
        exclude_seen: Leave out destinations that the source has had an event with.
        side: Whether the nodes of --embed are "source" or "destination", where both share ids.
        events: Table of events that came after the events of the stream, columns src, dst and time: taken in before the
            first answer. Edge features are found by the names that they had in training; where they had none, they are
            the other columns, in the order of training.
        source: The stream of training, where it is no longer at the place that the checkpoint names, or would have to
            be downloaded or unpickled.
        root: Folder of the named streams.
        save: Where to keep the state with those events, for the next --ckpt_path; nowhere if None.
        task: Import path of the task's class, my_module.MyTask, where it is your own.
        model: The same of the model.
        message: The same of the message function.
        trust: Do what the checkpoint says: import the classes that it names, in the place of the three options above,
            and prepare its stream where it says. Whoever wrote the file then chooses what runs here.
        batch_size: Questions answered at once.
        device: Where the model is.
    """

    ckpt_path: str
    output: str
    score: str | None = None
    top_k: str | None = None
    embed: str | None = None
    classify: str | None = None
    vertices: str | None = None
    quotes_formulas: bool = True
    k: int = 10
    candidates: str | None = None
    exclude_seen: bool = False
    side: str | None = None
    events: str | None = None
    source: str | None = None
    root: str | None = None
    save: str | None = None
    task: str | None = None
    model: str | None = None
    message: str | None = None
    trust: bool = False
    batch_size: int = 10_000
    device: str = "cpu"

    def __post_init__(self) -> None:
        asked = [name for name in (*QUESTIONS, "vertices") if getattr(self, name) is not None]
        if len(asked) != 1:
            cure = "give one table of questions, --score, --top_k, --embed or --classify, or a graph as --vertices"
            raise InvalidArgumentError("question", "one of score, top_k, embed, classify, vertices", asked, cure)
        for name in _OF_STREAMS if asked == ["vertices"] else ():
            if getattr(self, name) is not None:
                cure = "leave it out: the graph is all that is asked about"
                raise InvalidArgumentError(name, "left out with --vertices", getattr(self, name), cure)
        for name, question in _ONLY_WITH.items():
            given = getattr(self, name)
            if given != _DEFAULTS[name] and question not in asked:
                cure = f"leave it out, or ask by --{question}"
                raise InvalidArgumentError(name, f"left out without --{question}", given, cure)
        check_int("k", self.k, minimum=1, cure="10 is usual")
        check_int("batch_size", self.batch_size, minimum=1, cure="10000 is usual")
        if self.side is not None:
            check_choice("side", self.side, SIDES)
        check_suffix("output", self.output)

    @property
    def question(self) -> str:
        """What is asked."""
        return next(name for name in QUESTIONS if getattr(self, name) is not None)


_ONLY_WITH = {"k": "top_k", "candidates": "top_k", "exclude_seen": "top_k", "side": "embed"}
"""Options that belong to one question."""
_OF_STREAMS = ("events", "source", "save", "task", "message")
_DEFAULTS = {field.name: field.default for field in fields(PredictOptions)}
