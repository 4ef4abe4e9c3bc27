"""A predictor behind HTTP, by LitServe: one process answers, another speaks HTTP; needs the extra ``serve``."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

import litserve
from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse
from litserve.loops.base import LitLoop
from litserve.specs.base import LitSpec
from litserve.transport.base import MessageTransport
from litserve.utils import LitAPIStatus, LoopResponseType, ResponseBufferItem
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from lightning_tgnn.checks import LightningTGNNError
from lightning_tgnn.compat.lit_server import EndingServer, end_with_parent
from lightning_tgnn.serving.service import FAILED, KINDS, Answer, PredictorService, error_body

_MALFORMED, _TOO_LARGE, _OTHER_TYPE = 400, 413, 415
_LOOPBACK = "127.0.0.1"
_JSON = "application/json"
_CURES = {404: "ask for " + ", ".join(f"/{kind}" for kind in KINDS), 405: "use POST for questions and events"}


@dataclass(frozen=True)
class ServerOptions:
    """How a server listens.

    Attributes:
        host: Address that it listens on.
        port: Of that address.
        most_bytes: The largest body of a request.
        most_together: Requests that are answered together.
        save_every: Seconds between saved states.
    """

    host: str
    port: int
    most_bytes: int
    most_together: int
    save_every: float


def serve(make: Callable[[], PredictorService], options: ServerOptions) -> None:
    """Answer requests until SIGTERM or Ctrl-C.

    Args:
        make: Returns the service in the process that answers; it can be pickled.
        options: How to listen.
    """
    api = _API(make, options)
    # A page in a browser on this machine may send requests to it, also under a name of its own that leads here.
    own = [(TrustedHostMiddleware, {"allowed_hosts": [_LOOPBACK, "localhost"]})] if options.host == _LOOPBACK else []
    most = options.most_bytes
    server = EndingServer(api, accelerator="cpu", max_payload_size=most, middlewares=own, disable_openapi_url=True)
    server.app.add_exception_handler(HTTPException, _refused)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.stop)
    quiet: dict[str, Any] = {"generate_client_file": False, "pretty_logs": False, "log_level": "warning"}
    try:
        server.run(host=options.host, port=options.port, num_api_servers=1, **quiet)
    except RuntimeError as error:
        if "failed to start" not in str(error):
            raise
        sys.exit(1)  # the process that answers has said why


class _API(litserve.LitAPI):
    def __init__(self, make: Callable[[], PredictorService], options: ServerOptions) -> None:
        super().__init__(max_batch_size=options.most_together, spec=_Spec(options.most_bytes), loop=_Loop())
        self._make, self._options = make, options

    def setup(self, device: object) -> None:
        end_with_parent()
        ends = self.ends = threading.Event()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: SIGTERM follows
        signal.signal(signal.SIGTERM, lambda *_: ends.set())
        try:
            service = self.service = self._make()
        except LightningTGNNError as error:
            print(f"lightning-tgnn: {error}", file=sys.stderr)
            logging.getLogger("litserve").setLevel(logging.CRITICAL + 1)  # it would add a traceback
            raise

        def save() -> None:
            while not ends.wait(self._options.save_every):
                try:
                    service.save()
                except LightningTGNNError as error:  # the journal has what it lacks
                    print(f"lightning-tgnn: {error}", file=sys.stderr)

        threading.Thread(target=save, daemon=True).start()

    def predict(self, x: list[tuple[str, object]], **kwargs: object) -> list[Answer]:
        return self.service.answer(x)


class _Loop(LitLoop):
    """Answers what has come together; LitServe's own loops wait for a set time, or look again and again."""

    def __call__(
        self,
        lit_api: litserve.LitAPI,
        device: object,
        worker_id: int,
        request_queue: Queue[Any],
        transport: MessageTransport,
        *_: object,
    ) -> None:
        assert isinstance(lit_api, _API)
        waiting: list[Any] = []
        while not lit_api.ends.is_set():
            try:
                waiting.append(request_queue.get(timeout=1.0))
                while len(waiting) < lit_api.max_batch_size:
                    waiting.append(request_queue.get_nowait())
            except Empty:
                pass
            except (EOFError, OSError):  # the process that holds the queue has ended
                break
            answers = lit_api.predict([entry[-1] for entry in waiting]) if waiting else []
            for (place, uid, *_), answer in zip(waiting, answers, strict=True):
                self.put_response(transport, place, uid, answer, LitAPIStatus.OK, LoopResponseType.REGULAR)
            waiting.clear()
        lit_api.service.save()


class _Spec(LitSpec):
    """The paths."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self.api_path = "/requests"  # the name of its queue
        self._most_bytes = most_bytes
        self._seconds: dict[str, float] = defaultdict(float)
        self._answers: Counter[tuple[str, int]] = Counter()
        self._position = 0
        for kind in KINDS:
            self.add_endpoint(f"/{kind}", self._endpoint(kind), ["POST"])
        self.add_endpoint("/metrics", self._metrics, ["GET"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_endpoints": []}  # the process that answers has none

    def _endpoint(self, kind: str) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def answer(request: Request) -> JSONResponse:
            begin = time.perf_counter()
            found = await self._answer(kind, request)
            self._seconds[kind] += time.perf_counter() - begin
            self._answers[kind, found.status] += 1
            self._position = max(self._position, found.body.get("position", 0))
            return JSONResponse(dict(found.body), found.status)

        return answer

    async def _answer(self, kind: str, request: Request) -> Answer:
        requirement = f"of at most {self._most_bytes:,} bytes"
        too_large = Answer(_TOO_LARGE, error_body("body", requirement, "more", "send it in pieces"))
        sent = request.headers.get("content-type", "nothing")
        if sent.partition(";")[0].strip().lower() != _JSON:  # which no page may send without asking first
            return Answer(
                _OTHER_TYPE, error_body("Content-Type", _JSON, sent, f"send the header Content-Type: {_JSON}")
            )
        try:
            if int(request.headers.get("content-length", 0)) > self._most_bytes:
                return too_large
            body = await request.json()
        except HTTPException:
            return too_large
        except (ValueError, RecursionError) as error:
            return Answer(_MALFORMED, error_body("body", "JSON in UTF-8", str(error), "send what json.dumps writes"))
        uid, event = uuid.uuid4(), asyncio.Event()
        self.response_buffer[uid] = ResponseBufferItem(event=event)
        self.request_queue.put_nowait((self.response_queue_id, uid, time.monotonic(), (kind, body)))
        await event.wait()
        found, status = self.response_buffer.pop(uid).response
        if status == LitAPIStatus.ERROR or not isinstance(found, Answer):
            return Answer(FAILED, error_body("request", "one that can be answered", "this one", "see the server's log"))
        return found

    async def _metrics(self, request: Request) -> PlainTextResponse:
        counts = [f'{{path="/{kind}",status="{status}"}} {count}' for (kind, status), count in self._answers.items()]
        seconds = [f'{{path="/{kind}"}} {total:.6f}' for kind, total in self._seconds.items()]
        lines = [
            *("# TYPE lightning_tgnn_position gauge", f"lightning_tgnn_position {self._position}"),
            "# TYPE lightning_tgnn_requests_total counter",
            *(f"lightning_tgnn_requests_total{count}" for count in counts),
            "# TYPE lightning_tgnn_request_seconds_total counter",
            *(f"lightning_tgnn_request_seconds_total{total}" for total in seconds),
        ]
        return PlainTextResponse("\n".join(lines) + "\n")


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """Say in four facts what LitServe and FastAPI refuse by themselves."""
    assert isinstance(error, HTTPException)
    cure = _CURES.get(error.status_code, "correct the request")
    body = error_body("request", "one that the server takes", f"{request.method} {request.url.path}", cure)
    return JSONResponse(body, error.status_code)
