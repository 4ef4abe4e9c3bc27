"""What compressed gradients come to: value by value and rank by rank, as slowly and plainly as can be."""

import numpy as np
import torch

from lightning_tgnn.algorithms.traffic.gradient_compression import BFloat16, Int8, PowerSGD

BLOCK, LEVELS = 256, 127


def slow_mean(compression, ranks):
    """Return what forms means step by step; one rank sends nothing."""
    if compression is None or ranks == 1:
        return Exact(ranks)
    return {BFloat16: Rounded, Int8: Quantised, PowerSGD: Products}[type(compression)](ranks, compression)


class Exact:
    def __init__(self, ranks, compression=None):
        self.ranks, self.compression = ranks, compression

    def __call__(self, given):
        """Return the mean of what ranks have, a list of weights' gradients each."""
        return [sum(weight_grad) / self.ranks for weight_grad in zip(*given, strict=True)]


class Rounded(Exact):
    """Each rank rounds its share of the mean, and the sum is rounded."""

    def __call__(self, given):
        return [
            rounded(sum(rounded(gradient / self.ranks) for gradient in weight_grad))
            for weight_grad in zip(*given, strict=True)
        ]


def rounded(values):
    return values.to(torch.bfloat16).to(values.dtype)


class Quantised(Exact):
    """Each rank quantises its share and what it has kept back, and the sum is quantised, with what was kept of it."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.kept, self.kept_of_sums = {}, {}

    def __call__(self, given):
        means = []
        for number, weight_grad in enumerate(zip(*given, strict=True)):
            sent = [
                self.quantised(gradient / self.ranks, self.kept, (rank, number))
                for rank, gradient in enumerate(weight_grad)
            ]
            means.append(self.quantised(sum(sent), self.kept_of_sums, number))
        return means

    def quantised(self, values, kept, key):
        flat, before = values.flatten(), kept.get(key, torch.zeros(values.numel(), dtype=values.dtype))
        sent, left = torch.zeros_like(flat), before.clone()
        for begin in range(0, len(flat), BLOCK):
            block = range(begin, min(begin + BLOCK, len(flat)))
            wanted = {place: flat[place] + before[place] for place in block if flat[place] != 0}
            largest = max((abs(np.float32(value)) for value in wanted.values()), default=np.float32(0))
            scale = largest / np.float32(LEVELS)
            for place, value in wanted.items():
                level = np.rint(np.float32(value) / scale) if scale > 0 else np.float32(0)
                sent[place] = float(level * scale)
                left[place] = value - sent[place]
        kept[key] = left
        return sent.view_as(values)


class Products(Exact):
    """PowerSGD: a matrix is the product of two narrow ones; what is lacking is added to each rank's next gradient."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.steps, self.kept, self.right = 0, {}, {}

    def __call__(self, given):
        self.steps += 1
        means = super().__call__(given)
        if self.steps <= self.compression.warm_up:
            return means
        numbers = [number for number, gradient in enumerate(given[0]) if self.is_narrowed(gradient)]
        matrices = {number: [self.with_kept(gradients[number], rank, number) for rank, gradients in enumerate(given)]
                    for number in numbers}  # fmt: skip
        # The hook has matrices of the same shape beside each other.
        shapes = [tuple(matrices[number][0].shape) for number in numbers]
        numbers.sort(key=lambda number: shapes.index(tuple(matrices[number][0].shape)))
        self.turn({number: matrices[number][0] for number in numbers})
        for number in numbers:
            per_rank = matrices[number]
            right = orthogonal(self.right[number])
            left = orthogonal(sum(matrix @ right for matrix in per_rank))
            self.right[number] = sum(matrix.T @ left for matrix in per_rank) / self.ranks
            found = left @ self.right[number].T
            for rank, matrix in enumerate(per_rank):
                self.kept[rank, number] = matrix - found
            means[number] = found.view_as(means[number])
        return means

    def is_narrowed(self, gradient):
        if gradient.ndim < 2:
            return False
        rows, columns = as_matrix(gradient).shape
        return 2 * (rows + columns) * min(rows, columns, self.compression.rank) < rows * columns

    def with_kept(self, gradient, rank, number):
        return as_matrix(gradient) + self.kept.get((rank, number), 0)

    def turn(self, matrices):
        """Draw the right matrices at first, and turn them by next to nothing from then on."""
        is_first, generator = not self.right, torch.Generator()
        generator.manual_seed(np.random.RandomState(0).randint(1_000_000_000) if is_first else self.steps)
        widths = {number: (matrix.shape[1], min(*matrix.shape, self.compression.rank))
                  for number, matrix in matrices.items()}  # fmt: skip
        if is_first:
            like = next(iter(matrices.values())).dtype if matrices else None
            self.right = {number: torch.randn(1, *shape, generator=generator, dtype=like)[0]
                          for number, shape in widths.items()}  # fmt: skip
            return
        drawn = torch.randn(sum(rows * columns for rows, columns in widths.values()), generator=generator)
        for (number, shape), part in zip(
            widths.items(), drawn.split([rows * columns for rows, columns in widths.values()]), strict=True
        ):
            self.right[number] = self.right[number] + 1e-15 * part.view(shape)


def as_matrix(gradient):
    """Return the matrix of fewest rows and columns together."""
    ways = [gradient.flatten(cut).flatten(0, cut - 1) for cut in range(1, gradient.ndim)]
    return min(ways, key=lambda matrix: sum(matrix.shape))


def orthogonal(matrix):
    """Return columns of length 1 that are orthogonal to each other, zeros where there are none."""
    if matrix.shape[1] > 2:
        return torch.linalg.qr(matrix)[0]
    columns = []
    for column in matrix.T:
        for other in columns:
            column = column - (other * column).sum() * other
        columns.append(column / (column.norm() + 1e-20))
    return torch.stack(columns, dim=1)
