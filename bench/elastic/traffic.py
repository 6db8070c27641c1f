"""Pieces of real traces, scaled to the machine."""

import bisect
import csv
import datetime
import itertools
import json
import math
import subprocess
from pathlib import Path

import served

FILES = {"conversation": "traces/azure2023/AzureLLMInferenceTrace_conv.csv",
         "code": "traces/azure2023/AzureLLMInferenceTrace_code.csv"}
BOOKS = "text"
LONGEST = 600, 300  # tokens of a prompt and of an answer
SATURATING = 64  # streams
# What the thirds of a piece bring, of what full precision serves at most: a burst is too much for it, and not for layers
# that multiply small integers, which may serve half as much again.
BURST = 0.4, 1.35, 0.4


def read_trace(path):
    """Seconds since the first request, context tokens, generated tokens."""
    rows = []
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            rows.append((at, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    return [((at - rows[0][0]).total_seconds(), prompt, answer) for at, prompt, answer in rows]


def burst(rows, seconds, loads, rate):
    """The load and the beginning of the piece of so many seconds that looks most like a burst to what serves so many
    tokens a second: the least squares of what its thirds bring beside BURST, as ratios."""
    arrivals = [at for at, _, _ in rows]
    tokens = list(itertools.accumulate((prompt + answer for _, prompt, answer in rows), initial=0))
    third = seconds / 3

    def off(load, start):
        ends = [tokens[bisect.bisect_left(arrivals, start + i * third * load)] for i in range(4)]
        return sum(math.log(max(end - begin, 1) / (wanted * third * rate)) ** 2
                   for begin, end, wanted in zip(ends, ends[1:], BURST))

    pieces = ((load, start) for load in loads for start in range(0, max(1, int(arrivals[-1] - seconds * load)), 3))
    return min(pieces, key=lambda piece: off(*piece))


def clipped(prompt, answer, scale):
    return min(LONGEST[0], prompt * scale), min(LONGEST[1], answer * scale)


def bench(options, server, path, arguments, timeout=900):
    text = prompt_text(options)
    command = [options.protean, "bench", "serve", "--base-url", server.url, "--quiet", "--ignore-eos",
               "--prompt-file", str(text), "--max-input-len", f"{LONGEST[0]}", "--max-output-len", f"{LONGEST[1]}",
               "--json", str(path.with_suffix(".json")), *arguments]
    subprocess.run(command, check=True, timeout=timeout, stdout=subprocess.DEVNULL)
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def prompt_text(options):
    books = sorted(Path(options.data, BOOKS).rglob("*.txt"))
    if not books:
        raise SystemExit(f"{options.data}/{BOOKS} has no text to make prompts of: give --data")
    return books[0]


def closed_loop(options, path, server, out, streams, seed=0):
    """The trace's requests, so many of them at any time. Another seed makes other prompts of them."""
    return bench(options, server, out,
                 ["--trace", str(path), "--length-scale", f"{options.length_scale}", "--request-rate", "inf",
                  "--max-concurrency", f"{streams}", "--duration", f"{options.saturated_s:g}", "--seed", f"{seed}"])


class Limits:
    """What full precision can do at all with a trace's requests: tokens a second, and how soon the first one of a
    prompt alone."""

    SLO_S = 2
    SLO_TIMES_ALONE = 5

    def __init__(self, trace, options, flags, folder):
        path = Path(options.data, FILES[trace])
        with served.Server(options.protean, options.model, options.memory, flags, options.server_flags) as server:
            self.slo_ttft_s = options.slo_ttft_s
            if self.slo_ttft_s is None:
                alone = closed_loop(options, path, server, folder / "alone", 1)
                self.slo_ttft_s = max(self.SLO_S, self.SLO_TIMES_ALONE * alone["p95_ttft_ms"] / 1000)
            self.saturated = closed_loop(options, path, server, folder / "limit", SATURATING)["total_token_throughput"]
        self.rate = self.saturated  # what pieces are chosen for


class Piece:
    def __init__(self, trace, options, limits):
        self.options = options
        self.path = Path(options.data, FILES[trace])
        self.limits = limits
        self.rate = limits.rate
        rows = [(at, *clipped(prompt, answer, options.length_scale)) for at, prompt, answer in read_trace(self.path)]
        # A slower machine takes a shorter piece of the trace, stretched; a faster one a longer one, played faster.
        loads = [options.load] if options.load else [0.02 * 1.05**i for i in range(140)]
        self.load, self.start = burst(rows, options.seconds, loads, limits.rate)
        self.burst_s = options.seconds / 3, options.seconds * 2 / 3
        end = self.start + options.seconds * self.load
        sizes = [prompt + answer for at, prompt, answer in rows if self.start <= at < end]
        self.tokens_each = sum(sizes) / len(sizes)

    def describe(self):
        return (f"{self.options.seconds:g} s from {self.start:g} s on, {self.load:.2f} times its rate, token counts x "
                f"{self.options.length_scale:g}: as near as the trace has it to {BURST[1]:g} times {self.rate:.0f} tokens/s of "
                f"prompts and answers between {BURST[0]:g} and {BURST[2]:g} times (full precision serves "
                f"{self.limits.saturated:.0f}); late is a first token after {self.limits.slo_ttft_s:.1f} s; saturated is by "
                f"{SATURATING} streams")

    def saturate(self, server, out):
        """Tokens a second, prompts and answers, of a server that has been served as many already: what changes its form is
        as low as it goes."""
        for seed in (1, 2):
            result = closed_loop(self.options, self.path, server, out, SATURATING, seed)
        return result["total_token_throughput"]

    def at_rate(self, server, path, rate):
        """The same requests at Poisson arrivals of so many a second, for a third of the time."""
        return bench(self.options, server, path,
                     ["--trace", str(self.path), "--trace-start", f"{self.start}",
                      "--length-scale", f"{self.options.length_scale}", "--request-rate", f"{rate:g}",
                      "--duration", f"{self.options.seconds / 3:g}"])

    def send(self, server, path):
        scale = 1 / self.load
        arguments = ["--trace", str(self.path), "--trace-start", f"{self.start}",
                     "--duration", f"{self.options.seconds}", "--time-scale", f"{scale}",
                     "--length-scale", f"{self.options.length_scale}", "--temperature", "1",
                     "--extra-body", '{"logprobs": 0, "return_token_ids": true}',
                     "--slo-ttft-ms", f"{self.limits.slo_ttft_s * 1000:g}",
                     "--save-answers", str(path.with_suffix(".answers.jsonl"))]
        return bench(self.options, server, path, arguments)
