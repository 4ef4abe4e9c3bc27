"""``lightning-tgnn serve``: a trained model behind HTTP that takes in events while it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from lightning_tgnn.checks import InvalidArgumentError, check_choice, check_int, check_positive
from lightning_tgnn.commands.shared.options import Options
from lightning_tgnn.commands.shared.trained import check_checkpoint, open_predictor

if TYPE_CHECKING:
    from lightning_tgnn.serving import Predictor
    from lightning_tgnn.serving.service import PredictorService

_DESCRIPTION = """Answer questions by HTTP with a trained model, and take in events meanwhile.

  lightning-tgnn serve --ckpt_path CKPT --state state
  curl http://127.0.0.1:8000/events --json '{"src": ["ann"], "dst": ["bob"], "time": [1700000000]}'
  curl http://127.0.0.1:8000/top_k --json '{"src": ["ann"], "k": 10}'

POST takes /events, /scores, /top_k and /embeddings, with the fields of Predictor's methods; GET takes /health and
/metrics. Every answer has the position of the stream that it is of. An event whose answer has come is not lost when the
process is killed: the next one on the same --state has it. There is no password: whoever reaches the address may ask
and add events.
"""
_HOSTS = "127.0.0.1", "0.0.0.0", "::"


@dataclass(frozen=True)
class ServeOptions:
    """What to serve, and where.

    Args:
        ckpt_path: A checkpoint of a run, or what `Predictor.save` has written; the state to begin with.
        state: Folder of the state. Where it holds one, that continues, and ckpt_path gives nothing.
        host: Address to listen on: 127.0.0.1 for this machine alone, 0.0.0.0 or :: for all that reach it.
        port: Of that address, 1024 to 65535.
        save_every: Seconds between saved states; between them events are appended to a journal.
        most_bytes: The largest body of a request.
        most_together: Requests that are answered together.
        max_nodes: How many nodes there may be; events of new ones beyond are refused. None for no limit.
        source: The stream of training, where it is no longer at the place that the checkpoint names.
        root: Folder of the named streams.
        task: Import path of the task's class, my_module.MyTask, where it is your own.
        model: The same of the model.
        message: The same of the message function.
        trust: Do what the checkpoint says, as in predict.
        device: Where the model is.
    """

    ckpt_path: str
    state: str
    host: str = "127.0.0.1"
    port: int = 8000
    save_every: float = 60.0
    most_bytes: int = 10_000_000
    most_together: int = 64
    max_nodes: int | None = None
    source: str | None = None
    root: str | None = None
    task: str | None = None
    model: str | None = None
    message: str | None = None
    trust: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_choice("host", self.host, _HOSTS)
        check_int("port", self.port, minimum=1024, cure="8000 is usual")
        if self.port > 65_535:
            raise InvalidArgumentError("port", "at most 65535", self.port, "8000 is usual")
        check_positive("save_every", self.save_every, cure="60 is usual")
        check_int("most_bytes", self.most_bytes, minimum=1, cure="10000000 is usual")
        check_int("most_together", self.most_together, minimum=1, cure="64 is usual")
        if self.max_nodes is not None:
            check_int("max_nodes", self.max_nodes, minimum=1, cure="leave it out for no limit")


def serve(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InvalidArgumentError: An argument has a value that cannot work, or LitServe is missing.
    """
    (chosen,) = Options("serve", _DESCRIPTION, {ServeOptions: set()}).parse(arguments)
    options = ServeOptions(**chosen)
    check_checkpoint(Path(options.ckpt_path))
    if find_spec("litserve") is None:
        raise InvalidArgumentError("serve", "given LitServe", "none", "pip install 'lightning-tgnn[serve]'")
    from lightning_tgnn.serving.server import ServerOptions
    from lightning_tgnn.serving.server import serve as listen

    Console(stderr=True).out(f"http://{options.host}:{options.port}, state in {options.state}", highlight=False)
    how = ServerOptions(options.host, options.port, options.most_bytes, options.most_together, options.save_every)
    listen(partial(_service, options), how)


def _service(options: ServeOptions) -> PredictorService:
    from lightning_tgnn.serving.service import PredictorService

    return PredictorService.open(Path(options.state), partial(_begun, options), partial(_loaded, options))


def _begun(options: ServeOptions) -> Predictor:
    return _opened(options, Path(options.ckpt_path), options.source, options.root)


def _loaded(options: ServeOptions, path: Path) -> Predictor:
    return _opened(options, path, None, None)


def _opened(options: ServeOptions, path: Path, source: str | None, root: str | None) -> Predictor:
    own = {"task": options.task, "model": options.model, "message": options.message}
    predictor = open_predictor(path, source, root, options.device, trust=options.trust, **own)
    if options.max_nodes is not None:
        predictor.max_nodes = options.max_nodes
    return predictor
