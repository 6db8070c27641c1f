"""Evaluates a model directory: bits per byte of held-out text, and samples."""

import math
import multiprocessing

import torch

import corpus
import tokenizer

WINDOWS_AT_ONCE = 16  # windows that a process scores before it asks for more


@torch.no_grad()
def nats_of_each(decoder, inputs, targets):
    """Negative log-likelihood of every target, [rows, time]."""
    states = decoder.hidden(inputs)
    found = []
    for rows, wanted in zip(states.split(512), targets.reshape(-1, 1).split(512)):
        logits = decoder.arithmetic.mm(rows, decoder.weights["embed"].t())
        found.append(logits.logsumexp(1) - logits.gather(1, wanted)[:, 0])
    return torch.cat(found).view(targets.shape)


def cut_windows(tokens, context, stride):
    """(begin, first scored, end) of windows of at most `context` tokens. Each scores `stride` new ones, the first all
    that it can; a document's first token (BOS) is never scored."""
    scored, windows = 1, []
    while scored < tokens:
        end = min(tokens, scored + stride if windows else context)
        windows.append((max(0, end - context), scored, end))
        scored = end
    return windows


def score(decoder, ids, windows):
    """Nats of the tokens that the windows of a text score."""
    total, whole = 0.0, torch.tensor([tokenizer.BOS, *ids])
    for begin, first, end in windows:
        read = whole[begin:end].unsqueeze(0)
        nats = nats_of_each(decoder, read[:, :-1], read[:, 1:])
        total += float(nats[0, first - begin - 1:].sum(dtype=torch.float64))
    return total


def score_all(decoder, texts, context, stride):
    """Nats of each text (a list of ids), as `protean eval` scores them, on all cores."""
    pieces = []
    for place, ids in enumerate(texts):
        windows = cut_windows(len(ids) + 1, context, stride)
        pieces += [(place, ids, windows[i:i + WINDOWS_AT_ONCE]) for i in range(0, len(windows), WINDOWS_AT_ONCE)]
    torch.set_num_threads(1)
    with multiprocessing.get_context("fork").Pool(initializer=_give, initargs=(decoder,)) as pool:
        nats = [0.0] * len(texts)
        for place, part in pool.imap_unordered(_score_piece, pieces):
            nats[place] += part
    return nats


def _give(decoder):
    _score_piece.decoder = decoder  # forked processes inherit it without a copy


def _score_piece(piece):
    place, ids, windows = piece
    return place, score(_score_piece.decoder, ids, windows)


def _measured(tokens, byte_count, nats):
    return {"tokens": tokens, "bytes": byte_count, "nats_per_token": round(nats / tokens, 4),
            "bits_per_byte": round(nats / math.log(2) / byte_count, 4)}


def held_out(decoder, encoder, folder, context, stride):
    """name -> tokens, bytes, nats per token and bits per byte: each held-out book, all of them, the TinyStories."""
    books, stories = corpus.held_out_books(folder), corpus.stories(folder)[1]
    texts = [encoder.encode(document.text) for document in books + stories]
    nats = score_all(decoder, texts, context, stride)
    parts = [(len(ids), len(document.text.encode()), lost)
             for document, ids, lost in zip(books + stories, texts, nats)]
    found = {book.name: _measured(*part) for book, part in zip(books, parts)}
    found["held-out books together"] = _measured(*map(sum, zip(*parts[:len(books)])))
    found["held-out TinyStories"] = _measured(*map(sum, zip(*parts[len(books):])))
    return found


def _draw(logits, temperature, top_p, generator):
    if temperature == 0:
        return int(logits.argmax())
    chances, order = torch.softmax(logits / temperature, 0).sort(descending=True)
    kept = chances.cumsum(0) - chances < top_p
    return int(order[torch.multinomial(chances * kept, 1, generator=generator)])


def write_on(decoder, ids, count, temperature=0.0, seed=0):
    """Returns up to `count` ids after `ids`, greedily or at a temperature with top-p 0.95."""
    generator = torch.Generator().manual_seed(seed)
    ids, given = list(ids), len(ids)
    while len(ids) - given < count and len(ids) < decoder.config.context:
        token = _draw(decoder.logits(torch.tensor([ids]))[0], temperature, 0.95, generator)
        if token in (tokenizer.EOS, tokenizer.END):
            break
        ids.append(token)
    return ids[given:]
