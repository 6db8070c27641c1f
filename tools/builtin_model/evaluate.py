"""What a model directory is worth: bits per byte of held-out text, and what it writes."""

import math

import torch

import data
import tokenizer


@torch.no_grad()
def nats_of_each(decoder, inputs, targets):
    """Negative log-likelihood of every target, [rows, time]."""
    states = decoder.hidden(inputs)
    found = []
    for rows, wanted in zip(states.split(512), targets.reshape(-1, 1).split(512)):
        logits = decoder.arithmetic.mm(rows, decoder.weights["embed"].t())
        found.append(logits.logsumexp(1) - logits.gather(1, wanted)[:, 0])
    return torch.cat(found).view(targets.shape)


def score(decoder, ids, context, stride):
    """Nats of a text: windows of `context` positions, each begins with BOS, and each after the first scores only
    the `stride` tokens that the ones before it did not."""
    total, done = 0.0, 0
    ids = torch.tensor(ids)
    while done < len(ids):
        fresh = context if done == 0 else stride
        stop = min(done + fresh, len(ids))
        start = max(0, stop - context)
        targets = ids[start:stop].unsqueeze(0)
        nats = nats_of_each(decoder, data.with_bos(targets), targets)
        total += float(nats[0, done - start:].sum(dtype=torch.float64))
        done = stop
    return total


def measure(decoder, encoder, documents, context, stride):
    """Tokens, bytes, nats per token and bits per byte of the documents, each scored alone."""
    tokens = byte_count = 0
    nats = 0.0
    for document in documents:
        ids = encoder.encode(document.text)
        nats += score(decoder, ids, context, stride)
        tokens += len(ids)
        byte_count += len(document.text.encode())
    return {"tokens": tokens, "bytes": byte_count, "nats_per_token": round(nats / tokens, 4),
            "bits_per_byte": round(nats / math.log(2) / byte_count, 4)}


def _draw(logits, temperature, top_p, generator):
    if temperature == 0:
        return int(logits.argmax())
    chances, order = torch.softmax(logits / temperature, 0).sort(descending=True)
    kept = chances.cumsum(0) - chances < top_p
    return int(order[torch.multinomial(chances * kept, 1, generator=generator)])


def write_on(decoder, ids, count, temperature=0.0, seed=0):
    """Up to count further ids after ids, greedily or at a temperature with top-p 0.95."""
    generator = torch.Generator().manual_seed(seed)
    ids, given = list(ids), len(ids)
    while len(ids) - given < count and len(ids) < decoder.config.context:
        token = _draw(decoder.logits(torch.tensor([ids]))[0], temperature, 0.95, generator)
        if token in (tokenizer.EOS, tokenizer.END):
            break
        ids.append(token)
    return ids[given:]
