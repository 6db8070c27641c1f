"""A Llama decoder over one flat buffer of parameters, with gradients that need little memory traffic."""

import math
from dataclasses import dataclass

import torch

QUERY_BLOCK = 256  # queries attend in blocks of this size, so that half of the scores are never computed
EMBED_LENGTH = 0.8  # length of each token's vector at the start
LOGIT_ROWS = 512   # logits are computed, scored and dropped for this many positions at a time


@dataclass(frozen=True)
class Config:
    layers: int = 16
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 704
    vocabulary: int = 4096
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self):
        return self.hidden // self.heads

    @property
    def qkv_rows(self):
        """Rows of query, key and value weights, which are adjacent and form one matrix."""
        return (self.hidden, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim)


def layout(config):
    """(name, shape) of every tensor, in the buffer's order."""
    shapes = [("embed", (config.vocabulary, config.hidden)), ("norm", (config.hidden,))]
    for i in range(config.layers):
        shapes += [(f"{i}.norm1", (config.hidden,)), (f"{i}.qkv", (sum(config.qkv_rows), config.hidden)),
                   (f"{i}.o", (config.hidden, config.hidden)), (f"{i}.norm2", (config.hidden,)),
                   (f"{i}.gate_up", (2 * config.ffn, config.hidden)), (f"{i}.down", (config.hidden, config.ffn))]
    return shapes


def views(flat, config):
    """name -> view of the flat buffer."""
    found, at = {}, 0
    for name, shape in layout(config):
        count = math.prod(shape)
        found[name] = flat[at:at + count].view(shape)
        at += count
    return found


def parameter_count(config):
    return sum(math.prod(shape) for _, shape in layout(config))


def initialise(weights, config, generator):
    """Output projections start at zero: every layer begins as the identity. The embedding comes from elsewhere."""
    for name, tensor in weights.items():
        if "norm" in name:
            tensor.fill_(1.0)
        elif name == "embed" or name.endswith((".o", ".down")):
            tensor.zero_()
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.5 / math.sqrt(tensor.shape[1]))
    weights["norm"].fill_(0.5)


def grow(weights, layers, wanted):
    """Makes `wanted` layers of `layers`: behind each come copies whose output projections are zero, so that the
    function is the same and every new layer continues from its neighbour's weights."""
    copies = wanted // layers
    if copies * layers != wanted:
        raise ValueError(f"{layers} layers cannot become {wanted}: not a multiple")
    for target in range(wanted - 1, -1, -1):  # from the end, since sources are at or before their copies
        for part in ("norm1", "qkv", "o", "norm2", "gate_up", "down"):
            weights[f"{target}.{part}"].copy_(weights[f"{target // copies}.{part}"].clone())
    for target in range(wanted):
        if target % copies:
            weights[f"{target}.o"].zero_()
            weights[f"{target}.down"].zero_()


class Arithmetic:
    """The device and precision for matrix products; everything else is float32."""

    def __init__(self, bf16):
        self.bf16 = bf16

    def mm(self, a, b):
        if self.bf16:
            return torch.matmul(a.bfloat16(), b.bfloat16()).float()
        return torch.matmul(a, b)


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, arithmetic):
        ctx.save_for_backward(x, weight)
        ctx.arithmetic = arithmetic
        return arithmetic.mm(x, weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return ctx.arithmetic.mm(grad, weight), ctx.arithmetic.mm(grad.t(), x), None


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    def backward(ctx, grad):
        unit, scale, weight = ctx.saved_tensors
        product = grad * unit
        grad_weight = product.sum(0)
        along = torch.mv(product, weight).div_(unit.shape[1]).unsqueeze(1)
        return (grad * weight).addcmul_(unit, along, value=-1).mul_(scale), grad_weight, None


class SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up):
        gate, up = gate_up.chunk(2, dim=1)
        opened = torch.nn.functional.silu(gate)
        ctx.save_for_backward(gate_up, opened)
        return opened * up

    @staticmethod
    def backward(ctx, grad):
        gate_up, opened = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=1)
        out = torch.empty_like(gate_up)
        grad_gate, grad_up = out.chunk(2, dim=1)
        torch.mul(grad, opened, out=grad_up)
        slope = torch.sigmoid(gate)
        torch.mul(grad, up, out=grad_gate)
        grad_gate.mul_(slope.add_(opened.mul(1 - slope)))
        return out


def rotate(x, cos, sin, out):
    """RoPE over half-split pairs; cos and sin are [time, head_dim / 2]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out


class Attention(torch.autograd.Function):
    """Causal attention with grouped queries and RoPE, from fused [batch, time, q + k + v] to [batch, time, hidden]."""

    @staticmethod
    def forward(ctx, qkv, config, rope, arithmetic):
        batch, time, _ = qkv.shape
        groups, head = config.kv_heads, config.head_dim
        share = config.heads // groups
        cos, sin = rope[0][:time], rope[1][:time]
        q, k, v = qkv.split(config.qkv_rows, dim=2)
        scale = 1 / math.sqrt(head)
        queries = rotate(q.view(batch, time, groups, share, head).permute(0, 2, 3, 1, 4), cos * scale, sin * scale,
                         qkv.new_empty(batch, groups, share, time, head))
        keys = rotate(k.view(batch, time, groups, head).transpose(1, 2), cos, sin,
                      qkv.new_empty(batch, groups, time, head)).flatten(0, 1)
        values = v.view(batch, time, groups, head).transpose(1, 2).contiguous().flatten(0, 1)
        out = qkv.new_empty(batch, time, groups, share, head)
        kept = []
        for start in range(0, time, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, time)
            rows = queries[:, :, :, start:stop].reshape(batch * groups, -1, head)
            scores = arithmetic.mm(rows, keys[:, :stop].transpose(1, 2))
            tail = scores.view(-1, stop - start, stop)[:, :, start:]
            tail += torch.full((stop - start, stop - start), -math.inf, device=qkv.device).triu_(1)
            weights = torch.softmax(scores, dim=-1)
            kept.append((rows, weights))
            mixed = arithmetic.mm(weights, values[:, :stop])
            out[:, start:stop] = mixed.view(batch, groups, share, stop - start, head).permute(0, 3, 1, 2, 4)
        ctx.kept, ctx.keys, ctx.values, ctx.rope = kept, keys, values, (cos, sin)
        ctx.config, ctx.arithmetic = config, arithmetic
        return out.view(batch, time, config.hidden)

    @staticmethod
    def backward(ctx, grad):
        config, mm = ctx.config, ctx.arithmetic.mm
        batch, time, _ = grad.shape
        groups, head = config.kv_heads, config.head_dim
        share = config.heads // groups
        cos, sin = ctx.rope
        grad = grad.view(batch, time, groups, share, head).permute(0, 2, 3, 1, 4)
        grad_q = grad.new_empty(batch, groups, share, time, head)
        grad_k, grad_v = torch.zeros_like(ctx.keys), torch.zeros_like(ctx.values)
        for start, (rows, weights) in zip(range(0, time, QUERY_BLOCK), ctx.kept):
            stop = min(start + QUERY_BLOCK, time)
            above = grad[:, :, :, start:stop].reshape(batch * groups, -1, head)
            grad_v[:, :stop] += mm(weights.transpose(1, 2), above)
            by_weight = mm(above, ctx.values[:, :stop].transpose(1, 2))
            by_score = torch._softmax_backward_data(by_weight, weights, -1, weights.dtype)
            grad_q[:, :, :, start:stop] = mm(by_score, ctx.keys[:, :stop]).view(batch, groups, share, -1, head)
            grad_k[:, :stop] += mm(by_score.transpose(1, 2), rows)
        ctx.kept = None
        out = grad.new_empty(batch, time, sum(config.qkv_rows))
        q, k, v = out.split(config.qkv_rows, dim=2)
        scale = 1 / math.sqrt(head)
        rotate(grad_q, cos * scale, -sin * scale, q.view(batch, time, groups, share, head).permute(0, 2, 3, 1, 4))
        rotate(grad_k.view(batch, groups, time, head), cos, -sin, k.view(batch, time, groups, head).transpose(1, 2))
        v.view(batch, time, groups, head).copy_(grad_v.view(batch, groups, time, head).transpose(1, 2))
        return out, None, None, None


class Loss(torch.autograd.Function):
    """Summed cross entropy in nats of hidden states against the tied embedding; its gradients are made on the way."""

    @staticmethod
    def forward(ctx, x, embed, targets, arithmetic):
        need = x.requires_grad
        grad_x, grad_embed = (torch.empty_like(x), torch.zeros_like(embed)) if need else (None, None)
        total = x.new_zeros((), dtype=torch.float64)
        for start in range(0, x.shape[0], LOGIT_ROWS):
            rows, wanted = x[start:start + LOGIT_ROWS], targets[start:start + LOGIT_ROWS].unsqueeze(1)
            logits = arithmetic.mm(rows, embed.t())
            normal = logits.logsumexp(1, keepdim=True)
            total += (normal - logits.gather(1, wanted)).sum(dtype=torch.float64)
            if need:
                by_logit = logits.sub_(normal).exp_()
                by_logit.scatter_add_(1, wanted, torch.full_like(wanted, -1, dtype=by_logit.dtype))
                grad_x[start:start + LOGIT_ROWS] = arithmetic.mm(by_logit, embed)
                grad_embed += arithmetic.mm(by_logit.t(), rows)
        ctx.grads = (grad_x, grad_embed)
        return total

    @staticmethod
    def backward(ctx, grad):
        grad_x, grad_embed = ctx.grads
        ctx.grads = None
        return grad_x.mul_(grad.float()), grad_embed.mul_(grad.float()), None, None


class Model:
    """The decoder. `weights` is name -> tensor; only the first `layers` layers act."""

    def __init__(self, config, weights, arithmetic, device="cpu"):
        self.config, self.weights, self.arithmetic = config, weights, arithmetic
        self.layers = config.layers
        half = config.head_dim // 2
        rates = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(config.context, dtype=torch.float64).unsqueeze(1) * rates
        self.rope = (angles.cos().float().to(device), angles.sin().float().to(device))

    def hidden(self, tokens):
        """Final normalised states, [batch * time, hidden]."""
        config, w = self.config, self.weights
        batch, time = tokens.shape
        x = torch.nn.functional.embedding(tokens.reshape(-1), w["embed"])
        for i in range(self.layers):
            normed = RmsNorm.apply(x, w[f"{i}.norm1"], config.norm_eps)
            qkv = Linear.apply(normed, w[f"{i}.qkv"], self.arithmetic)
            mixed = Attention.apply(qkv.view(batch, time, -1), config, self.rope, self.arithmetic)
            x = x + Linear.apply(mixed.view(batch * time, -1), w[f"{i}.o"], self.arithmetic)
            normed = RmsNorm.apply(x, w[f"{i}.norm2"], config.norm_eps)
            opened = SwiGlu.apply(Linear.apply(normed, w[f"{i}.gate_up"], self.arithmetic))
            x = x + Linear.apply(opened, w[f"{i}.down"], self.arithmetic)
        return RmsNorm.apply(x, w["norm"], config.norm_eps)

    def loss(self, tokens, targets):
        """Nats, summed over all positions."""
        return Loss.apply(self.hidden(tokens), self.weights["embed"], targets.reshape(-1), self.arithmetic)

    @torch.no_grad()
    def logits(self, tokens):
        """For the last position of each row, [batch, vocabulary]."""
        states = self.hidden(tokens).view(*tokens.shape, -1)[:, -1]
        return self.arithmetic.mm(states, self.weights["embed"].t())
