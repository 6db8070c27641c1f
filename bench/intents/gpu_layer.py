"""Computes and times layers on an NVIDIA GPU with PyTorch and Triton, for gpu_steps.py."""

import gc
import math
from statistics import median

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

DIM = 128  # of a head
# Seconds before a step is measured and of measuring it, in decoding and in prefill. Prefill draws so much power that
# the GPU lowers its clocks, and takes about a second to find the right ones.
LASTS = ((0.4, 0.15), (1.5, 0.8))
TOLERANCE = 0.01  # relative, between implementations of attention

torch.set_grad_enabled(False)


@triton.jit
def add_norm_kernel(x, residual, weight, out, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    h = tl.load(residual + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
    h += tl.load(x + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row * hidden + at, h.to(tl.bfloat16), mask=inside)
    h = h / tl.sqrt(tl.sum(h * h, 0) / hidden + 1e-6)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + at, (h * w).to(tl.bfloat16), mask=inside)


# Rotates queries and keys, and stores keys and values in the cache.
@triton.jit
def rope_kernel(qkv, turns, rows, positions, q, keys, values, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
                DIM: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    half = tl.arange(0, DIM // 2)
    position = tl.load(positions + token)
    cos = tl.load(turns + position * DIM + half)
    sin = tl.load(turns + position * DIM + DIM // 2 + half)
    turned = (head < HEADS + KV_HEADS)[:, None]
    cos = tl.where(turned, cos[None, :], 1.0)
    sin = tl.where(turned, sin[None, :], 0.0)
    inside = (head < HEADS + 2 * KV_HEADS)[:, None]
    at = qkv + token * ((HEADS + 2 * KV_HEADS) * DIM) + head[:, None] * DIM + half[None, :]
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    x = (a * cos - b * sin).to(tl.bfloat16)
    y = (b * cos + a * sin).to(tl.bfloat16)
    is_q = (head < HEADS)[:, None]
    at = q + token * (HEADS * DIM) + head[:, None] * DIM + half[None, :]
    tl.store(at, x, mask=is_q)
    tl.store(at + DIM // 2, y, mask=is_q)
    row = tl.load(rows + token) * (KV_HEADS * DIM)
    is_k = ((head >= HEADS) & (head < HEADS + KV_HEADS))[:, None]
    at = keys + row + (head - HEADS)[:, None] * DIM + half[None, :]
    tl.store(at, x, mask=is_k)
    tl.store(at + DIM // 2, y, mask=is_k)
    is_v = ((head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS))[:, None]
    at = values + row + (head - HEADS - KV_HEADS)[:, None] * DIM + half[None, :]
    tl.store(at, x, mask=is_v)
    tl.store(at + DIM // 2, y, mask=is_v)


@triton.jit
def silu_kernel(x, out, ffn, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < ffn
    gate = tl.load(x + row * 2 * ffn + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * ffn + ffn + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * ffn + at, (gate / (1 + tl.exp(-gate)) * up).to(tl.bfloat16), mask=inside)


# Attends one part of one sequence's KV for the queries of one head of KV. Parts are whole tiles.
@triton.jit(do_not_specialize=["splits", "part"])
def split_kernel(q, keys, values, out, partial, stats, length, part, splits, scale, KV_HEADS: tl.constexpr,
                 GROUP: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, DIRECT: tl.constexpr):
    split = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    row = tl.arange(0, 16)
    dim = tl.arange(0, DIM)
    tile = tl.arange(0, TILE)
    of_group = (row < GROUP)[:, None]
    at = ((sequence * KV_HEADS + head) * GROUP + row)[:, None] * DIM + dim[None, :]
    query = tl.load(q + at, mask=of_group, other=0.0)
    base = sequence * length * (KV_HEADS * DIM) + head * DIM
    best = tl.full([16], -1e30, tl.float32)
    total = tl.zeros([16], tl.float32)
    sums = tl.zeros([16, DIM], tl.float32)
    first = split * part
    for begin in range(first, tl.minimum(first + part, length), TILE):
        where = base + (begin + tile)[:, None] * (KV_HEADS * DIM) + dim[None, :]
        k = tl.load(keys + where)
        v = tl.load(values + where)
        score = tl.dot(query, tl.trans(k)) * scale
        most = tl.maximum(best, tl.max(score, 1))
        p = tl.exp2(score - most[:, None])
        fade = tl.exp2(best - most)
        total = total * fade + tl.sum(p, 1)
        sums = sums * fade[:, None] + tl.dot(p.to(tl.bfloat16), v)
        best = most
    sums = sums / total[:, None]
    if DIRECT:
        tl.store(out + at, sums.to(tl.bfloat16), mask=of_group)
    else:
        row_at = ((sequence * KV_HEADS + head) * GROUP + row) * splits + split
        tl.store(partial + row_at[:, None] * DIM + dim[None, :], sums, mask=of_group)
        tl.store(stats + row_at, best + tl.log2(total), mask=row < GROUP)


@triton.jit
def merge_kernel(partial, stats, out, SPLITS: tl.constexpr, DIM: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, DIM)
    stat = tl.load(stats + row * SPLITS + split)
    share = tl.exp2(stat - tl.max(stat, 0))
    share = share / tl.sum(share, 0)
    sums = tl.load(partial + (row * SPLITS + split)[:, None] * DIM + dim[None, :])
    tl.store(out + row * DIM + dim, tl.sum(sums * share[:, None], 0).to(tl.bfloat16))


class Layer:
    """One device's weights of a decoder layer."""

    def __init__(self, model):
        hidden, tensor = model["hidden"], model["tensor"]
        self.hidden, self.ffn = hidden, model["ffn"] // tensor
        self.heads, self.kv_heads = model["heads"] // tensor, model["kv_heads"] // tensor
        wide = self.heads * DIM
        qkv = wide + 2 * self.kv_heads * DIM
        self.norms = [random(hidden), random(hidden)]
        self.qkv, self.out = random(qkv, hidden, scale=hidden ** -0.5), random(hidden, wide, scale=wide ** -0.5)
        self.bias = random(qkv, scale=0.1) if model["bias"] else None
        self.gate_up = random(2 * self.ffn, hidden, scale=hidden ** -0.5)
        self.down = random(hidden, self.ffn, scale=self.ffn ** -0.5)


class Batch:
    """The inputs of a step, and its KV cache as [sequences, length, heads, DIM]."""

    def __init__(self, layer, sequences, tokens, before, cache):
        self.sequences, self.tokens, self.before, self.length = sequences, tokens, before, before + tokens
        self.rows = sequences * tokens
        shape = (sequences, self.length, layer.kv_heads, DIM)
        self.keys, self.values = (one[:math.prod(shape)].view(shape) for one in cache)
        self.x, self.residual = random(self.rows, layer.hidden), random(self.rows, layer.hidden)
        at = torch.arange(self.rows, device="cuda")
        self.positions = before + at % tokens
        self.cache_rows = at // tokens * self.length + self.positions


def random(*shape, scale=1.0):
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, scale)


def turn_table(length):
    angle = torch.arange(length, device="cuda").float()[:, None] * 1e6 ** -(
        torch.arange(DIM // 2, device="cuda").float()[None, :] / (DIM // 2))
    return torch.cat([angle.cos(), angle.sin()], 1).contiguous()


def add_norm(x, residual, weight):
    out = torch.empty_like(x)
    add_norm_kernel[(x.shape[0],)](x, residual, weight, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]),
                                   num_warps=8)
    return out


def silu(x):
    ffn = x.shape[1] // 2
    out = torch.empty(x.shape[0], ffn, dtype=x.dtype, device="cuda")
    silu_kernel[(x.shape[0], triton.cdiv(ffn, 1024))](x, out, ffn, BLOCK=1024)
    return out


def rope(layer, batch, qkv, turns):
    q = torch.empty(batch.rows, layer.heads * DIM, dtype=qkv.dtype, device="cuda")
    heads = layer.heads + 2 * layer.kv_heads
    rope_kernel[(batch.rows, triton.cdiv(heads, 8))](qkv, turns, batch.cache_rows, batch.positions, q, batch.keys,
                                                     batch.values, HEADS=layer.heads, KV_HEADS=layer.kv_heads,
                                                     DIM=DIM, BLOCK=8)
    return q


def run_layer(layer, batch, turns, attend):
    """Computes a layer. Without attention, queries take the place of its output."""
    x = add_norm(batch.x, batch.residual, layer.norms[0])
    q = rope(layer, batch, F.linear(x, layer.qkv, layer.bias), turns)
    x = F.linear(attend(layer, batch, q) if attend else q, layer.out)
    x = add_norm(x, batch.residual, layer.norms[1])
    return F.linear(silu(F.linear(x, layer.gate_up)), layer.down)


def reference(layer, batch, turns):
    """Computes a layer in float32, without changing the batch's residual."""
    def norm(x, weight):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.float()

    def turn(x):
        angle = turns[batch.positions][:, None, :]
        cos, sin = angle[..., :DIM // 2], angle[..., DIM // 2:]
        a, b = x[..., :DIM // 2], x[..., DIM // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    h = batch.residual.float() + batch.x.float()
    x = norm(h, layer.norms[0]) @ layer.qkv.float().T + (layer.bias.float() if layer.bias is not None else 0)
    x = x.view(batch.rows, -1, DIM)
    q, k, v = x.split([layer.heads, layer.kv_heads, layer.kv_heads], 1)
    q, k = turn(q), turn(k)
    keys, values = batch.keys.float().flatten(0, 1), batch.values.float().flatten(0, 1)
    keys[batch.cache_rows], values[batch.cache_rows] = k, v
    group = layer.heads // layer.kv_heads
    keys, values = (one.view(batch.sequences, batch.length, -1, DIM).repeat_interleave(group, 2).transpose(1, 2)
                    for one in (keys, values))
    q = q.view(batch.sequences, batch.tokens, -1, DIM).transpose(1, 2)
    scores = q @ keys.transpose(2, 3) * DIM ** -0.5
    hidden_from = torch.ones(batch.tokens, batch.length, dtype=torch.bool, device="cuda").triu(batch.before + 1)
    x = scores.masked_fill(hidden_from, float("-inf")).softmax(-1) @ values
    h = h + x.transpose(1, 2).reshape(batch.rows, -1) @ layer.out.float().T
    gate, up = (norm(h, layer.norms[1]) @ layer.gate_up.float().T).chunk(2, 1)
    return (F.silu(gate) * up) @ layer.down.float().T


def views(batch, q):
    return (q.view(batch.sequences, batch.tokens, -1, DIM).transpose(1, 2), batch.keys.transpose(1, 2),
            batch.values.transpose(1, 2))


def rejoined(batch, x):
    return x.transpose(1, 2).reshape(batch.rows, -1)


def flash(layer, batch, q):
    # F.scaled_dot_product_attention refuses a causal mask if there is earlier KV; this is its flash backend.
    out = torch.ops.aten._scaled_dot_product_flash_attention(*views(batch, q), 0.0, batch.tokens > 1, False,
                                                             scale=DIM ** -0.5)
    return rejoined(batch, out[0])


def flash_rows(layer, batch, q):
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        q.view(batch.sequences, layer.kv_heads, -1, DIM), batch.keys.transpose(1, 2), batch.values.transpose(1, 2),
        0.0, False, False, scale=DIM ** -0.5)
    return out[0].reshape(batch.rows, -1)


def cudnn_of(q, keys, values, causal, lse=False):
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, keys, values, None, lse, 0.0, causal, False,
                                                              scale=DIM ** -0.5)


def cudnn(layer, batch, q):
    return rejoined(batch, cudnn_of(*views(batch, q), batch.tokens > 1)[0])


def cudnn_merged(layer, batch, q):
    q, keys, values = views(batch, q)
    before = batch.before
    old = cudnn_of(q, keys[:, :, :before], values[:, :, :before], False, True)
    new = cudnn_of(q, keys[:, :, before:], values[:, :, before:], True, True)
    shape = (*q.shape[:3], 1)
    share = torch.sigmoid(new[1].view(shape) - old[1].view(shape)).to(q.dtype)
    return rejoined(batch, torch.lerp(old[0], new[0], share))


def split_of(tile, stages, splits):
    def attend(layer, batch, q):
        out = torch.empty_like(q)
        rows = batch.sequences * layer.heads
        partial = torch.empty(rows * splits * DIM if splits > 1 else 1, dtype=torch.float32, device="cuda")
        stats = torch.empty(rows * splits, dtype=torch.float32, device="cuda")
        split_kernel[(splits, layer.kv_heads, batch.sequences)](
            q, batch.keys, batch.values, out, partial, stats, batch.length, batch.length // splits, splits,
            DIM ** -0.5 * math.log2(math.e), KV_HEADS=layer.kv_heads, GROUP=layer.heads // layer.kv_heads, DIM=DIM,
            TILE=tile, DIRECT=splits == 1, num_warps=4, num_stages=stages)
        if splits > 1:
            merge_kernel[(rows,)](partial, stats, out, SPLITS=splits, DIM=DIM,
                                  num_warps=1 if splits <= 16 else 4)
        return out
    return attend


def implementations(layer, batch):
    """Returns what may compute this attention, by name. The first one is what others are compared with."""
    found = {"flash": flash, "cudnn": cudnn}
    if batch.tokens > 1:
        if batch.before > 0:
            found["cudnn-merged"] = cudnn_merged
        return found
    if layer.heads > layer.kv_heads:
        found["flash-rows"] = flash_rows
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    for tile, stages in ((64, 3), (32, 4)):
        for waves in (4, 8):
            splits = waves * processors / (batch.sequences * layer.kv_heads)
            splits = max(1, min(2 ** math.ceil(math.log2(splits)), batch.length // 64))
            found.setdefault(f"split-{tile}-{splits}", split_of(tile, stages, splits))
    return found


def graph_of(body, copies):
    """Returns a CUDA graph of several calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
        body()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            body()
    return graph


def medians(graphs, settle_s, measure_s):
    """Returns the median time of each graph in us. The graphs run in turn, so that all run at the same clocks,
    and the first runs, before clocks follow the load, are not counted."""
    def run(rounds):
        events = []
        for _ in range(rounds):
            for graph in graphs:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                events.append((begin, end))
        torch.cuda.synchronize()
        us = [1000 * begin.elapsed_time(end) for begin, end in events]
        return [us[i::len(graphs)] for i in range(len(graphs))]

    run(1)
    round_s = sum(us[0] for us in run(1)) / 1e6
    run(math.ceil(settle_s / round_s))
    return [median(us) for us in run(max(7, min(200, int(measure_s / round_s))))]


def timed(bodies, copies, settle_s=0.4, measure_s=0.15):
    """Returns the median time of a call of each body in us."""
    graphs = [graph_of(body, copies) for body in bodies]
    times = [us / copies for us in medians(graphs, settle_s, measure_s)]
    for graph in graphs:
        graph.reset()
    if torch.cuda.memory_reserved() > 50e9:
        torch.cuda.empty_cache()
    return times


def difference(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


class Bench:
    def __init__(self, model, cache_tokens):
        self.model = model
        self.layer = Layer(self.model)
        self.cache = [random(cache_tokens * self.layer.kv_heads * DIM) for _ in range(2)]
        self.turns = turn_table(32768)

    def check(self):
        """Returns relative errors of a layer to float32."""
        errors = {}
        for sequences, tokens, before in ((1, 128, 0), (1, 128, 384), (8, 1, 511)):
            batch = Batch(self.layer, sequences, tokens, before, self.cache)
            expected = reference(self.layer, batch, self.turns)
            residual = batch.residual.clone()
            for name, attend in implementations(self.layer, batch).items():
                batch.residual.copy_(residual)
                try:
                    error = difference(run_layer(self.layer, batch, self.turns, attend), expected)
                except RuntimeError as failure:
                    error = str(failure)[:200]
                errors[f"{sequences} x {tokens} after {before}: {name}"] = error
        return errors

    def step(self, sequences, tokens, before, expected_us):
        layer, turns = self.layer, self.turns
        batch = Batch(layer, sequences, tokens, before, self.cache)
        copies = max(2, min(16, math.ceil(2000 / expected_us)))
        q = random(batch.rows, layer.heads * DIM)
        inputs = [random(batch.rows, columns) for columns in (layer.heads * DIM, layer.ffn)]

        def whole_with(attend):
            return lambda: run_layer(layer, batch, turns, attend)

        def matrices():
            F.linear(batch.x, layer.qkv, layer.bias)
            F.linear(inputs[0], layer.out)
            F.linear(batch.x, layer.gate_up)
            F.linear(inputs[1], layer.down)

        whole_with(None)()  # stores the keys and values of the step
        rejected, agree, first = {}, {}, None
        for name, attend in implementations(layer, batch).items():
            try:
                out = attend(layer, batch, q)
                first = out if first is None else first
                error = difference(out, first)
                if error < TOLERANCE:
                    agree[name] = attend
                else:
                    rejected[name] = f"differs by {error:.3g}"
            except RuntimeError as failure:
                rejected[name] = str(failure)[:200]
        tried = dict(zip(agree, timed([whole_with(attend) for attend in agree.values()], copies, 0.15)))
        best = min(tried, key=tried.get)
        us, without, alone = timed([whole_with(agree[best]), whole_with(None), matrices], copies, *LASTS[tokens > 1])
        return {"attention": best, "tried": tried, "rejected": rejected, "layer_us": us, "matrices_us": alone,
                "others_us": without - alone, "attention_us": us - without}

    def ends(self, rows, logits):
        """Returns the times of the embedding matrix by rows, and of the LM head with the norm before it by rows of
        logits."""
        vocab, hidden = self.model["vocab"] // self.model["tensor"], self.model["hidden"]
        matrix = random(vocab, hidden, scale=hidden ** -0.5)
        norm = random(hidden)
        found = {"embedding_us": {}, "head_us": {}}
        for count in rows:
            ids = torch.randint(vocab, (count,), device="cuda")
            found["embedding_us"][count] = timed([lambda: F.embedding(ids, matrix)], 16, 0.05, 0.05)[0]
        for count in logits:
            x, residual = random(count, hidden), random(count, hidden)
            found["head_us"][count] = timed([lambda: F.linear(add_norm(x, residual, norm), matrix)], 4)[0]
        return found

    def whole(self, sequences, tokens, before, best):
        """Returns the time of all layers, each with weights and KV of its own."""
        layers = [Layer(self.model) for _ in range(self.model["layers"])]
        count = sequences * (before + tokens) * self.layer.kv_heads * DIM
        batches = []
        for _ in layers:
            batch = Batch(self.layer, sequences, tokens, before, [random(count), random(count)])
            if batches:
                batch.residual = batches[0].residual
            batches.append(batch)
        attend = implementations(self.layer, batches[0])[best]

        def body():
            x = batches[0].x
            for layer, batch in zip(layers, batches):
                batch.x = x
                x = run_layer(layer, batch, self.turns, attend)
            batches[0].x.copy_(x)

        first = batches[0].x

        def again():
            batches[0].x = first
            body()

        return timed([again], 1, *LASTS[tokens > 1])[0]


def ceilings():
    a, b = random(8192, 8192), random(8192, 8192)
    source, target = (torch.empty(2 ** 31, dtype=torch.int8, device="cuda").random_() for _ in range(2))
    floats = torch.empty(2 ** 30, device="cuda").normal_()
    return {"matrix_tflops": 2 * 8192 ** 3 / timed([lambda: a @ b], 4)[0] / 1e6,
            "copy_gb_s": 2 * 2 ** 31 / timed([lambda: target.copy_(source)], 4)[0] / 1e3,
            "read_gb_s": 4 * 2 ** 30 / timed([lambda: floats.sum()], 4)[0] / 1e3}


def free_memory():
    gc.collect()
    torch.cuda.empty_cache()
