"""Pieces of real traces, scaled to what the machine can serve."""

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
LONGEST = 600, 300  # tokens of the longest prompt and of the longest answer
SATURATING = 64  # streams
# The load of each third of a piece, relative to the capacity of full precision. The burst exceeds that capacity, but not
# the one of layers that multiply integers, which is about 1.5 times as large.
BURST = 0.4, 1.35, 0.4


def read_trace(path):
    """Returns a list of (seconds since the first request, context tokens, generated tokens)."""
    rows = []
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            rows.append((at, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    return [((at - rows[0][0]).total_seconds(), prompt, answer) for at, prompt, answer in rows]


def burst(rows, seconds, loads, rate):
    """Returns the load and the start of the piece whose thirds come nearest to BURST for a capacity of `rate` tokens/s: the
    smallest sum of squared logarithms of the ratios. The piece is `seconds` long when it is played at `load` times the
    speed of the trace."""
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
        raise SystemExit(f"{options.data}/{BOOKS} has no *.txt for prompts: set --data")
    return books[0]


def closed_loop(options, path, server, out, streams, seed=0):
    """Sends the trace's requests, `streams` at any time. Another seed gives other prompts."""
    return bench(options, server, out,
                 ["--trace", str(path), "--length-scale", f"{options.length_scale}", "--request-rate", "inf",
                  "--max-concurrency", f"{streams}", "--duration", f"{options.saturated_s:g}", "--seed", f"{seed}"])


class Limits:
    """What full precision achieves with a trace's requests: tokens/s when saturated, and the TTFT of a prompt alone, from
    which the SLO follows."""

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
        self.rate = self.saturated  # the capacity for which pieces are chosen


class Piece:
    def __init__(self, trace, options, limits):
        self.options = options
        self.path = Path(options.data, FILES[trace])
        self.limits = limits
        self.rate = limits.rate
        rows = [(at, *clipped(prompt, answer, options.length_scale)) for at, prompt, answer in read_trace(self.path)]
        # A slower machine gets a shorter piece of the trace at a lower speed, a faster one a longer piece at a higher speed.
        loads = [options.load] if options.load else [0.02 * 1.05**i for i in range(140)]
        self.load, self.start = burst(rows, options.seconds, loads, limits.rate)
        self.burst_s = options.seconds / 3, options.seconds * 2 / 3
        end = self.start + options.seconds * self.load
        sizes = [prompt + answer for at, prompt, answer in rows if self.start <= at < end]
        self.tokens_each = sum(sizes) / len(sizes)

    def describe(self):
        return (f"{self.options.seconds:g} s from {self.start:g} s on, at {self.load:.2f} times the trace's rate, token counts x "
                f"{self.options.length_scale:g}. Its thirds come nearest to {BURST[0]:g}, {BURST[1]:g} and {BURST[2]:g} times "
                f"{self.rate:.0f} tokens/s (full precision saturates at {self.limits.saturated:.0f}). A first token after "
                f"{self.limits.slo_ttft_s:.1f} s is late. {SATURATING} streams saturate")

    def saturate(self, server, out):
        """Returns the tokens/s, of prompts and answers, of a saturated server. Measures after a first saturated period, so
        that a server that morphs has reached its lowest form."""
        for seed in (1, 2):
            result = closed_loop(self.options, self.path, server, out, SATURATING, seed)
        return result["total_token_throughput"]

    def at_rate(self, server, path, rate):
        """Sends the same requests with Poisson arrivals of `rate` requests/s for a third of the time."""
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
