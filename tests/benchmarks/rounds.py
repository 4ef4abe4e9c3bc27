"""Rounds of training steps in a process of its own, run in turns with those of others, so that noise hits all.

The child prints a line of JSON after each round and waits for a line before the next.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
STEPS_PER_ROUND = 60
WARM_UP_ROUNDS = 1


def take_turns(round_number, events, seconds, **more):
    """In the child: report the round that has ended and wait until it is our turn."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps({"round": round_number, "events": events, "seconds": seconds, "peak_mb": peak, **more}), flush=True
    )
    return bool(sys.stdin.readline())


class Turns:
    """In the child: counts steps into rounds."""

    def __init__(self):
        self.steps, self.events, self.round = 0, 0, 0
        self.start = time.perf_counter()

    def step(self, events, **more):
        """Count a step; False if the parent wants no more."""
        self.steps += 1
        self.events += events
        if self.steps % STEPS_PER_ROUND:
            return True
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            more["device_mb"] = torch.cuda.max_memory_allocated() / 2**20
        going_on = take_turns(self.round, self.events, time.perf_counter() - self.start, **more)
        self.round += 1
        self.events = 0
        self.start = time.perf_counter()
        return going_on


class Contestant:
    """In the parent: a child process."""

    def __init__(self, module, *arguments):
        command = [sys.executable, "-m", f"tests.benchmarks.{module}", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.last = None

    def play(self):
        """Run one round and return its report. The first round runs by itself, before the child first waits."""
        if self.last is not None:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("{"):
            if not line:
                raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        self.last = json.loads(line)
        return self.last

    def close(self):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait(timeout=60)
