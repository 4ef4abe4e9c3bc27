"""Real process groups for tests: a function runs on every rank in a process of its own."""

import multiprocessing
import os
import pickle
import queue
import random
import socket
import time
import traceback
from contextlib import suppress
from unittest import mock

import torch
import torch.distributed as dist

_ports = random.SystemRandom()  # seeded tests of several workers would choose the same


def free_port():
    """Return a port that is free and likely to stay so: below those that systems give to whoever asks for any."""
    while True:
        port = _ports.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def forking():
    """Return a context whose processes are forked from one that has imported everything: that takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.conftest", "tests.multiprocess.preloaded"])
    return context


class Started:
    """A process that runs a function as if it were a program of its own, and what it prints.

    Args:
        function: What it runs.
        arguments: Of the function.
        environment: Variables that it has beside those of this process.
        pipe: A path that does not exist yet.
    """

    def __init__(self, function, arguments, environment, pipe):
        os.mkfifo(pipe)
        self._read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self._process = forking().Process(target=_printing, args=(pipe, environment, function, arguments))
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
            self._process.start()

    def finish(self, deadline):
        """Return the exit code and what was printed, once nobody, of no process, can print to it any more."""
        text, ended = b"", False
        try:
            while time.monotonic() < deadline:
                ended = ended or self._process.exitcode is not None
                try:
                    more = os.read(self._read, 1 << 16)
                except BlockingIOError:
                    more = None  # somebody may print yet
                if more:
                    text += more
                elif more == b"" and ended:
                    return self._process.exitcode, text.decode()
                else:
                    time.sleep(0.02)
            raise AssertionError(f"took too long:\n{text.decode()[-3000:]}")
        finally:
            self.kill()

    def kill(self):
        """End it, if it runs, and forget what it printed."""
        self._process.kill()
        self._process.join()
        if self._read is not None:
            os.close(self._read)
            self._read = None


def _printing(pipe, environment, function, arguments):
    out = os.open(pipe, os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*arguments)


def run_commands(folder, words, hosts=1, timeout=200):
    """Return what each of two ranks of ``lightning-tgnn`` prints, in a folder, as if torchrun had started them."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": str(2 // hosts)}
    started, deadline = [], time.monotonic() + timeout
    try:
        for rank in range(2):
            group, local = (rank, 0) if hosts == 2 else (0, rank)
            own = shared | {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(group)}
            started.append(Started(_command, (folder, words), own, folder / f"{shared['MASTER_PORT']}-{rank}.pipe"))
        codes, printed = zip(*[process.finish(deadline) for process in started], strict=True)
    finally:  # where ranks wait for each other for ever, both have to end
        for process in started:
            process.kill()
    assert codes == (0, 0), printed
    return printed


def _command(folder, words):
    from lightning_tgnn.__main__ import main

    os.chdir(folder)
    main(words)


def run_ranks(function, ranks, *arguments, timeout=120):
    """Return what ``function(rank, ranks, *arguments)`` returns on each rank; it has a default group (gloo).

    Raises if a rank raises or the time is over; no process stays behind.
    """
    context = forking()
    results, port = context.Queue(), free_port()
    processes = [
        context.Process(target=_main, args=(function, rank, ranks, port, results, arguments)) for rank in range(ranks)
    ]
    # Read when the OpenMP library is loaded: threads of several ranks on few cores wait for each other.
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        for process in processes:
            process.start()
    answers, deadline = {}, time.monotonic() + timeout
    try:
        while len(answers) < ranks:
            try:
                rank, answer, error = results.get(timeout=0.5)
            except queue.Empty:
                codes = {rank: process.exitcode for rank, process in enumerate(processes) if rank not in answers}
                dead = {rank: code for rank, code in codes.items() if code not in (None, 0)}
                if dead:
                    raise AssertionError(f"ended without an answer, rank: exit code: {dead}") from None
                if time.monotonic() > deadline:
                    raise AssertionError(f"ranks {sorted(set(range(ranks)) - set(answers))} took too long") from None
                continue
            if error:
                raise AssertionError(f"rank {rank}:\n{error}")
            answers[rank] = pickle.loads(answer)
    finally:
        for process in processes:
            process.join(timeout=5 if len(answers) == ranks else 0)
            if process.is_alive():
                process.kill()
                process.join()
    return [answers[rank] for rank in range(ranks)]


def _main(function, rank, ranks, port, results, arguments):
    try:
        torch.set_num_threads(1)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        # As bytes: tensors in a queue would live in files of a process that is about to end.
        results.put((rank, pickle.dumps(function(rank, ranks, *arguments)), None))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
