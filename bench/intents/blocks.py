"""Blocks of time with the same requests: with a guest, without one, and without one again. The two without tell how far two equal blocks differ."""

import itertools
import random

import traffic

ALONE, AGAIN, GUEST = KINDS = ("alone", "again", "guest")
ORDERS = list(itertools.permutations(KINDS))


def kind_of(block):
    """The kinds of three blocks that follow each other differ, and each order of them comes in turn."""
    return ORDERS[block // 3 % len(ORDERS)][block % 3]


def twins(requests, block_s):
    """Sends each stretch of `block_s` seconds of the requests in three blocks, one of each kind. Returns a triple by kind for each request; its stretch is `group`."""
    triples = []
    for request in requests:
        group, within_s = divmod(request.due_s, block_s)
        triple = {}
        for block in range(3 * int(group), 3 * int(group) + 3):
            triple[kind_of(block)] = traffic.open_loop.Sent(block * block_s + within_s, request.prompt_tokens, request.answer_tokens,
                                                            kind=str(int(group)), model=request.model)
        triples.append(triple)
    return triples


def overlaps(request, spans):
    return any(request.due_s < end and begin < request.token_s[-1] for begin, end in spans)


def ratio(triples, kind, share=0.95):
    """P95 TPOT in blocks of a kind to that in blocks without a guest."""
    of = lambda which: traffic.percentile([triple[which].tpot_s for triple in triples], share)
    return of(kind) / of(ALONE) if triples else float("nan")


def compare(triples, seed=1, times=1000):
    """Ratios of P95 TPOT, each with the interval that holds 95 % of 1,000 samples of whole groups of blocks. All requests of the triples were answered."""
    groups = {}
    for triple in triples:
        groups.setdefault(triple[ALONE].kind, []).append(triple)
    rng, groups = random.Random(seed), list(groups.values())
    found = {"requests": len(triples), **{f"p95_{kind}_ms": 1000 * traffic.percentile([triple[kind].tpot_s for triple in triples], 0.95) for kind in KINDS}}
    samples = [sum(rng.choices(groups, k=len(groups)), []) for _ in range(times)] if groups else []
    for kind in (GUEST, AGAIN):
        values = [ratio(sample, kind) for sample in samples]
        found[kind] = {"ratio": ratio(triples, kind), "from": traffic.percentile(values, 0.025), "to": traffic.percentile(values, 0.975)}
    return found
