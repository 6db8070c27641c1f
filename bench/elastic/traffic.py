"""Windows of real traces, chosen from the trace alone and scaled to what the machine can serve."""

import bisect
import csv
import datetime
import itertools
import json
import random
import subprocess
from pathlib import Path

AZURE = "traces/azure2023/AzureLLMInferenceTrace_{}.csv"
BURSTGPT = "traces/burstgpt/burstgpt_aggregates.json"
TRACES = "conversation", "code", "burstgpt"
BOOKS = "text"
LONGEST = 600, 300  # tokens of the longest prompt and of the longest answer, if the model reads so many
LONGEST_SHARES = 0.6, 0.3  # of the tokens that it reads; prompts of text vary somewhat
BURSTGPT_MEANS = 642, 262  # tokens of a prompt and of an answer
SATURATING = 64  # streams
PARTS = 8  # of a window; the busiest one is its peak
LEAST_REQUESTS = 5  # on average, in each part of a window
ENOUGH = 4000  # requests, for a server that is to be saturated
SPREAD_S = 0.5  # most that a copy of a request is sent before or after it


def azure(path):
    """Returns a list of (seconds since the first request, tokens of the prompt, tokens of the answer)."""
    rows = []
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            rows.append((at, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    return [((at - rows[0][0]).total_seconds(), prompt, answer) for at, prompt, answer in rows]


def burstgpt(path):
    """The same of BurstGPT, of which only the tokens/s of each minute are known. A minute becomes a second, so that a window
    has as many changes of load as an hour. Lengths are drawn, exponential with the published means, and so are arrivals
    within a second."""
    rng = random.Random(0)
    rows = []
    for minute in json.loads(Path(path).read_text(encoding="utf-8"))["week1_min"]:
        left = 60 * minute["tps"]
        while left > 0:
            prompt, answer = (1 + int(rng.expovariate(1 / mean)) for mean in BURSTGPT_MEANS)
            left -= prompt + answer
            rows.append((minute["t"] + rng.random(), prompt, answer))
    return sorted(rows)


def read_trace(name, data):
    path = Path(data, BURSTGPT if name == "burstgpt" else AZURE.format({"conversation": "conv"}.get(name, name)))
    return burstgpt(path) if name == "burstgpt" else azure(path)


def longest(max_model_len):
    """Returns the tokens of the longest prompt and of the longest answer for a model."""
    return tuple(min(most, int(share * max_model_len)) for most, share in zip(LONGEST, LONGEST_SHARES))


def clipped(sizes, options):
    return [max(1, round(min(most, size * options.length_scale))) for size, most in zip(sizes, options.longest)]


class Window:
    """Some seconds of a trace, with lengths as they are sent."""

    def __init__(self, trace, start, rows, seconds):
        self.trace, self.start, self.rows, self.seconds = trace, start, rows, seconds
        parts = [0] * PARTS
        for at, prompt, answer in rows:
            parts[min(PARTS - 1, int(at / seconds * PARTS))] += prompt + answer
        self.mean = sum(parts) / seconds  # tokens/s
        self.parts = [part * PARTS / seconds / self.mean for part in parts] if rows else [0] * PARTS  # relative to it

    def peak(self):
        return max(self.parts)


def windows(trace, options):
    """Returns the windows of a trace with the highest ratios of peak to mean, of all that begin at multiples of their length."""
    rows = [(at, *clipped(sizes, options)) for at, *sizes in read_trace(trace, options.data)]
    arrivals = [at for at, _, _ in rows]
    found = []
    for i in itertools.takewhile(lambda i: (i + 1) * options.seconds <= arrivals[-1], itertools.count()):
        start = i * options.seconds
        begin, end = (bisect.bisect_left(arrivals, start + after) for after in (0, options.seconds))
        if end - begin >= PARTS * LEAST_REQUESTS:
            found.append(Window(trace, start, [(at - start, *sizes) for at, *sizes in rows[begin:end]], options.seconds))
    return sorted(found, key=Window.peak, reverse=True)[:options.windows]


def write_load(window, tokens_per_s, path):
    """Writes the requests of a window, thinned or repeated so that they offer `tokens_per_s` on average, as a trace. A repeated
    request is sent within SPREAD_S of the original."""
    rng = random.Random(window.start)
    factor = tokens_per_s / window.mean
    sent = []
    for at, prompt, answer in window.rows:
        for copy in range(int(factor + rng.random())):
            shifted = at + (rng.uniform(-SPREAD_S, SPREAD_S) if copy else 0)
            sent.append((min(max(shifted, 0), window.seconds), prompt, answer))
    epoch = datetime.datetime(2000, 1, 1)
    with open(path, "w", encoding="utf-8") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for at, prompt, answer in sorted(sent):
            out.write(f"{epoch + datetime.timedelta(seconds=at):%Y-%m-%d %H:%M:%S.%f},{prompt},{answer}\n")


def prompt_text(options):
    books = sorted(Path(options.data, BOOKS).rglob("*.txt"))
    if not books:
        raise SystemExit(f"{options.data}/{BOOKS} has no *.txt for prompts: set --data")
    return books[0]


def bench(options, server, path, arguments, timeout=900):
    command = [options.protean, "bench", "serve", "--base-url", server.url, "--quiet", "--ignore-eos",
               "--prompt-file", str(prompt_text(options)), "--max-input-len",
               f"{options.longest[0]}", "--max-output-len", f"{options.longest[1]}", "--json", str(path.with_suffix(".json")), *arguments]
    subprocess.run(command, check=True, timeout=timeout, stdout=subprocess.DEVNULL)
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def send(options, server, trace_file, path):
    """Sends the requests that write_load() wrote, and keeps the answers."""
    return bench(options, server, path, ["--trace", str(trace_file), "--temperature", "1", "--extra-body",
                                         '{"logprobs": 0, "return_token_ids": true}',
                                         "--save-answers", str(path.with_suffix(".answers.jsonl"))])


def closed_loop(options, server, trace_file, path, streams):
    """Sends the requests of a file, `streams` at any time."""
    return bench(options, server, path, ["--trace", str(trace_file), "--request-rate", "inf", "--max-concurrency", f"{streams}",
                                         "--duration", f"{options.saturated_s:g}"])


class Limits:
    """What full precision achieves with a window's requests: tokens/s of prompts and answers when saturated, and the TTFT of
    a prompt alone, from which the SLO follows."""

    SLO_S = 2
    SLO_TIMES_ALONE = 5

    def __init__(self, window, options, started, folder):
        path = folder / "limits"
        write_load(window, window.mean * ENOUGH / len(window.rows), path.with_suffix(".csv"))
        with started() as server:
            self.slo_ttft_s = options.slo_ttft_s
            if self.slo_ttft_s is None:
                alone = closed_loop(options, server, path.with_suffix(".csv"), folder / "alone", 1)
                self.slo_ttft_s = max(self.SLO_S, self.SLO_TIMES_ALONE * alone["p95_ttft_ms"] / 1000)
            saturated = closed_loop(options, server, path.with_suffix(".csv"), folder / "limit", SATURATING)
            self.saturated = saturated["total_token_throughput"]
