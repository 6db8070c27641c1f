"""A first embedding from the whole text at once: tokens with similar neighbours begin close together.

It is the leading part of the matrix of positive pointwise mutual information (Levy and Goldberg, 2014), which costs
a minute and saves the first hundred thousand tokens of training.
"""

import numpy

REACH = 4  # neighbours on each side; a nearer one counts more
POWER_STEPS = 5


def from_neighbours(ids, vocabulary, hidden, seed):
    """[vocabulary, hidden] float32, every row of the same length."""
    ids = ids.astype(numpy.int64)
    counts = numpy.zeros(vocabulary * vocabulary)
    for distance in range(1, REACH + 1):
        counts += numpy.bincount(ids[:-distance] * vocabulary + ids[distance:], minlength=vocabulary ** 2) / distance
    counts = counts.reshape(vocabulary, vocabulary)
    counts += counts.T.copy()
    often = numpy.maximum(counts.sum(1), 1e-9)
    smooth = often ** 0.75
    information = numpy.log(numpy.maximum(counts, 1e-12) / (often[:, None] * (smooth / smooth.sum())[None, :]))
    information = numpy.maximum(information, 0).astype(numpy.float32)
    return _leading((information + information.T) / 2, hidden, numpy.random.RandomState(seed))


def _leading(symmetric, hidden, rng):
    size = len(symmetric)
    basis = rng.randn(size, min(size, hidden + 64)).astype(numpy.float32)
    for _ in range(POWER_STEPS):
        basis, _ = numpy.linalg.qr(symmetric @ basis)
    values, vectors = numpy.linalg.eigh(basis.T @ symmetric @ basis)
    largest = numpy.argsort(-numpy.abs(values))[:hidden]
    rows = (basis @ vectors[:, largest]) * numpy.sqrt(numpy.abs(values[largest]))
    rows -= rows.mean(0)
    rows /= numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-3)
    turned, _ = numpy.linalg.qr(rng.randn(hidden, hidden))  # no direction stands out at first
    return (rows @ turned).astype(numpy.float32)
