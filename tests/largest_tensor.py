"""The memory that tensor operations take."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Keeps the bytes of the largest tensor that an operation has made."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        for tensor in tree_leaves(made):
            if torch.is_tensor(tensor):
                self.largest = max(self.largest, tensor.numel() * tensor.element_size())
        return made
