"""What `torch.cuda.make_graphed_callables` makes of a stage, on the CPU: it is recomputed where a graph is replayed.

As there, inputs, outputs and gradients have places of their own, which each replay overwrites.
"""

import contextlib

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightning_tgnn.tasks import capture


def replayed(run, args, *, allow_unused_input):
    """Return a stage that reads static inputs and leaves static outputs and gradients."""
    records = torch.is_grad_enabled()
    outputs, form = tree_flatten(run(*args))
    learns = [output.requires_grad for output in outputs]
    outputs = [output.detach().clone() for output in outputs]
    asked = [argument for argument in args if argument.requires_grad]
    gradients = [torch.zeros_like(argument) if argument.requires_grad else None for argument in args]
    grad_outputs = [torch.zeros_like(output) for output in outputs]
    computed = []

    class Replayed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            for static, tensor in zip(args, given, strict=True):
                if static.data_ptr() != tensor.data_ptr():
                    static.copy_(tensor)
            with torch.profiler.record_function("replay"):
                with torch.set_grad_enabled(records):
                    computed[:] = tree_flatten(run(*args))[0]
                for static, output in zip(outputs, computed, strict=True):
                    static.copy_(output.detach())
            return tuple(output.detach() for output in outputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, *given):
            for static, gradient in zip(grad_outputs, given, strict=True):
                static.copy_(gradient)
            with torch.profiler.record_function("replay"):
                made = [one for one, learned in zip(computed, learns, strict=True) if learned]
                to_made = [one for one, learned in zip(grad_outputs, learns, strict=True) if learned]
                found = iter(torch.autograd.grad(made, asked, to_made, allow_unused=allow_unused_input))
                arrived = [next(found) if argument.requires_grad else None for argument in args]
                for static, gradient in zip(gradients, arrived, strict=True):
                    if gradient is not None:
                        static.copy_(gradient)
            return tuple(
                None if gradient is None else static.detach()
                for static, gradient in zip(gradients, arrived, strict=True)
            )

    return lambda *given: tree_unflatten(list(Replayed.apply(*given)), form)


@contextlib.contextmanager
def capturing_on_the_cpu():
    """Capture stages where there is no GPU; yields the list of what has been made."""
    made = []

    def make(run, args, *, allow_unused_input):
        made.append(args)
        return replayed(run, args, allow_unused_input=allow_unused_input)

    capture.RECORDERS["cpu"] = make
    try:
        yield made
    finally:
        del capture.RECORDERS["cpu"]
