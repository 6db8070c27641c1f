"""Pieces of real traces, scaled to the machine."""

import bisect
import csv
import datetime
import json
import math
import subprocess
from pathlib import Path

import served

FILES = {"conversation": "traces/azure2023/AzureLLMInferenceTrace_conv.csv",
         "code": "traces/azure2023/AzureLLMInferenceTrace_code.csv"}
BOOKS = "text"
LONGEST = 600, 300  # tokens of a prompt and of an answer


def read_trace(path):
    """Seconds since the first request, context tokens, generated tokens."""
    rows = []
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            rows.append((at, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    return [((at - rows[0][0]).total_seconds(), prompt, answer) for at, prompt, answer in rows]


def burst(rows, seconds):
    """Where the piece of so many seconds begins in which most of the work falls into the middle third, and its tokens."""
    most, found = -1, (0.0, sum(prompt + answer for at, prompt, answer in rows if at < seconds))
    for start in range(0, int(rows[-1][0] - seconds), 6):
        work = [0, 0, 0]
        for at, prompt, answer in rows[bisect.bisect(rows, (start,)):]:
            if at >= start + seconds:
                break
            work[min(2, int((at - start) / seconds * 3))] += prompt + answer
        if work[1] > most and work[1] > 1.5 * work[2]:
            most, found = work[1], (float(start), sum(work))
    return found


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


class Limits:
    """What the systems can do at all with a trace's requests: tokens a second, and how soon the first one of a prompt alone."""

    SLO_S = 2
    SLO_TIMES_ALONE = 5

    def __init__(self, trace, options, systems, folder):
        self.options = options
        self.path = Path(options.data, FILES[trace])
        self.rates = {}
        self.slo_ttft_s = options.slo_ttft_s
        for name, flags in systems.items():
            if name in ("bf16", options.levels[-1], "balanced"):
                self._measure(name, flags, folder / f"limits-{name}")

    def _measure(self, name, flags, path):
        options = self.options
        server = served.Server(options.protean, options.model, options.memory, flags, options.server_flags)
        try:
            if name == "bf16" and self.slo_ttft_s is None:
                alone = self._closed_loop(server, path, 1)
                self.slo_ttft_s = max(self.SLO_S, self.SLO_TIMES_ALONE * alone["p95_ttft_ms"] / 1000)
            if name == "balanced":
                self._closed_loop(server, path, 64)  # until it is as low as it goes
            self.rates[name] = self._closed_loop(server, path, 64)["total_token_throughput"]
        finally:
            server.stop()

    def _closed_loop(self, server, path, streams):
        return bench(self.options, server, path,
                     ["--trace", str(self.path), "--length-scale", f"{self.options.length_scale}",
                      "--request-rate", "inf", "--max-concurrency", f"{streams}", "--duration", "10"])


class Piece:
    def __init__(self, trace, options, limits):
        self.options = options
        self.path = Path(options.data, FILES[trace])
        self.limits = limits
        self.load = options.load or 1.0
        rows = [(at, *clipped(prompt, answer, options.length_scale)) for at, prompt, answer in read_trace(self.path)]
        self.start, tokens = burst(rows, options.seconds * self.load)
        # A slower machine takes a shorter piece of the trace, stretched. The mean over it is more than
        # full precision serves at most, its burst the more so.
        wanted = 1.1 * limits.rates["bf16"] * options.seconds
        load, least = self.load, abs(math.log(tokens / wanted))
        for _ in range(0 if options.load else 12):
            load *= (wanted / tokens) ** 0.5
            start, tokens = burst(rows, options.seconds * load)
            off = abs(math.log(tokens / wanted))
            if off < least:
                self.load, self.start, least = load, start, off

    def describe(self):
        text = (f"{self.options.seconds:g} s from {self.start:g} s on, {self.load:.2f} times its rate, "
                f"token counts x {self.options.length_scale:g}")
        rates = ", ".join(f"{name} {rate:.0f}" for name, rate in self.limits.rates.items())
        return f"{text}; closed loop of 64: {rates} tokens/s (prompts and answers); late is a first token after {self.limits.slo_ttft_s:.1f} s"

    def send(self, server, path):
        scale = 1 / self.load
        arguments = ["--trace", str(self.path), "--trace-start", f"{self.start}",
                     "--duration", f"{self.options.seconds}", "--time-scale", f"{scale}",
                     "--length-scale", f"{self.options.length_scale}", "--temperature", "1",
                     "--extra-body", '{"logprobs": 0, "return_token_ids": true}',
                     "--slo-ttft-ms", f"{self.limits.slo_ttft_s * 1000:g}",
                     "--save-answers", str(path.with_suffix(".answers.jsonl"))]
        return bench(self.options, server, path, arguments)
