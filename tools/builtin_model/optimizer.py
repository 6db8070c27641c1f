"""Muon for the matrices of the layers, Adam for the embedding and the norms.

Muon (Jordan et al., 2024): the momentum of a matrix is replaced by the nearest matrix with all singular values
near one, found by five Newton-Schulz steps, so that every direction moves alike.
"""

import math
from dataclasses import dataclass

import torch

ADAM_BETAS, ADAM_EPS = (0.9, 0.98), 1e-10
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Part:
    """One piece of the flat buffer that is updated as a whole."""
    start: int
    shape: tuple
    layer: int  # -1: outside the layers
    muon: bool

    @property
    def count(self):
        return math.prod(self.shape)

    @property
    def cost(self):
        if not self.muon:
            return self.count * 10
        short, long = sorted(self.shape)
        return 5 * (4 * short * short * long + 2 * short ** 3)


def parts(config, layout):
    """Splits fused matrices: queries, keys and values each have their own update."""
    found, at = [], 0
    for name, shape in layout:
        layer = int(name.split(".")[0]) if "." in name else -1
        rows = {"qkv": config.qkv_rows, "gate_up": (config.ffn, config.ffn)}.get(name.split(".")[-1], shape[:1])
        muon = layer >= 0 and len(shape) == 2
        for count in rows:
            found.append(Part(at, (count, *shape[1:]), layer, muon))
            at += found[-1].count
    return found


def shares(all_parts, workers):
    """Assigns updates to workers: the costliest first, each to the worker with least work."""
    owned, load = [[] for _ in range(workers)], [0] * workers
    for part in sorted(all_parts, key=lambda p: (-p.cost, p.start)):
        least = load.index(min(load))
        owned[least].append(part)
        load[least] += part.cost
    return owned


def orthogonal(update, mm):
    a, b, c = NEWTON_SCHULZ
    tall = update.shape[0] > update.shape[1]
    x = update.t() if tall else update
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = mm(x, x.t())
        x = a * x + mm(b * square + c * mm(square, square), x)
    return x.t() if tall else x


class Optimizer:
    """Updates its own parts of the flat weights from the sum of the workers' gradients."""

    def __init__(self, owned, state, arithmetic):
        self.owned, self.state, self.mm = owned, state, arithmetic.mm

    @torch.no_grad()
    def step(self, gradients, layers, step, rates):
        """step counts from 1 since the moments were last zero."""
        muon_rate, adam_rate = rates
        weights, first, second = self.state
        for part in self.owned:
            if part.layer >= layers:
                continue
            at = slice(part.start, part.start + part.count)
            gradient = gradients[0][at]
            for other in gradients[1:]:
                gradient = gradient + other[at]
            if part.muon:
                momentum = 0.85 + 0.10 * min(1.0, step / 300)
                first[at].mul_(momentum).add_(gradient, alpha=1 - momentum)
                update = gradient * (1 - momentum) + first[at] * momentum
                update = orthogonal(update.view(part.shape), self.mm)
                widen = math.sqrt(max(1.0, part.shape[0] / part.shape[1]))
                weights[at].add_(update.reshape(-1), alpha=-muon_rate * widen)
            else:
                b1, b2 = ADAM_BETAS
                first[at].mul_(b1).add_(gradient, alpha=1 - b1)
                second[at].mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
                spread = (second[at] / (1 - b2 ** step)).sqrt_().add_(ADAM_EPS)
                weights[at].addcdiv_(first[at], spread, value=-adam_rate / (1 - b1 ** step))
