"""Requests of the simulated runs: their lengths, when they arrive, and the KV that they need."""

import csv
import functools
import json
import math
import os
import random
from pathlib import Path
from statistics import NormalDist, mean

DATA = Path(os.environ.get("PROTEAN_DATA", Path(__file__).parents[2] / "../shared/data"))
# Means of prompts and answers, sigma of prompts (None: they come from a file) and the longest prompt.
LENGTHS = {"burstgpt": (642, 262, 0.8, 8192), "sharegpt": (1660, 373, None, 4096), "longbench": (5900, 499, 0.5, 12288),
           "longbench-tail": (5900, 499, 0.8, 24576)}
ANSWER_SIGMA, LONGEST_ANSWER = 0.6, 2048
SHAREGPT = "traces/lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
MINUTES = 11  # of the long run


def write_trace(folder, name, rows):
    path = os.path.join(folder, f"{name}.csv")
    with open(path, "w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for at, prompt, answer in rows:
            file.write(f"2026-01-01 {int(at) // 3600:02}:{int(at) // 60 % 60:02}:{at % 60:010.7f},{prompt},{answer}\n")
    return path


def scale_to(average, of):
    """The number x at which of(x), which grows, is the average."""
    low, high = 1e-3, 1e6
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if of(middle) < average else (low, middle)
    return low


@functools.cache
def median_of(average, sigma, most):
    """The median at which a lognormal distribution cut at `most` has this mean."""
    normal = NormalDist()

    def cut_mean(median):
        at = math.log(most / median) / sigma
        return median * math.exp(sigma * sigma / 2) * normal.cdf(at - sigma) + most * normal.cdf(-at)

    return scale_to(average, cut_mean)


@functools.cache
def sharegpt():
    """Lengths of the file, scaled so that they have the means once they are cut."""
    with open(DATA / SHAREGPT) as file:
        rows = [(int(row["num_prefill_tokens"]), int(row["num_decode_tokens"])) for row in csv.DictReader(file)]
    columns = []
    for column, average, most in zip(zip(*rows), LENGTHS["sharegpt"][:2], (LENGTHS["sharegpt"][3], LONGEST_ANSWER)):
        factor = scale_to(average, lambda x: mean(min(most, tokens * x) for tokens in column))
        columns.append([min(most, int(tokens * factor)) for tokens in column])
    return list(zip(*columns))


def lengths(rng, kind):
    prompt_mean, answer_mean, sigma, most = LENGTHS[kind]
    if sigma is None:
        prompt, answer = rng.choice(sharegpt())
    else:
        draw = lambda average, sigma, most: min(most, int(rng.lognormvariate(math.log(median_of(average, sigma, most)), sigma)))
        prompt, answer = draw(prompt_mean, sigma, most), draw(answer_mean, ANSWER_SIGMA, LONGEST_ANSWER)
    return max(8, prompt), max(2, answer)


def arrivals(rate_at, seconds, kind, seed):
    """Arrivals of a Poisson process whose rate changes with time, thinned from its largest rate."""
    rng, rows = random.Random(seed), []
    most = max(rate_at(t / 4) for t in range(int(4 * seconds) + 1))
    at = 0.0
    while True:
        at += rng.expovariate(most)
        if at >= seconds:
            return rows
        request = lengths(rng, kind)
        if rng.random() * most < rate_at(at):
            rows.append((at, *request))


def minutes_of_burstgpt(first=None):
    """Minutes in a row, as shares of the busiest one, and the first one's number; by default the busiest."""
    with open(DATA / "traces/burstgpt/burstgpt_aggregates.json") as file:
        totals = {row["t"]: row["tps"] for row in json.load(file)["week1_min"]}  # of the others nothing: they are idle
    window = lambda start: [totals.get(start + i, 0.0) for i in range(MINUTES)]
    start = max(totals, key=lambda start: sum(window(start))) if first is None else first
    return [value / max(window(start)) for value in window(start)], start
