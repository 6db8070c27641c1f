"""Pieces of real traces, scaled to the machine."""

import csv
import datetime
import json
import subprocess
from pathlib import Path

import served

FILES = {"conversation": "traces/azure2023/AzureLLMInferenceTrace_conv.csv",
         "code": "traces/azure2023/AzureLLMInferenceTrace_code.csv"}
BOOKS = "text"


def read_trace(path):
    """Seconds since the first request, context tokens, generated tokens."""
    rows = []
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            rows.append((at, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    return [((at - rows[0][0]).total_seconds(), prompt, answer) for at, prompt, answer in rows]


def burst(rows, seconds):
    """Where the piece of so many seconds begins in which most of the work falls into one third."""
    best, start = -1.0, 0.0
    for begin in range(0, int(rows[-1][0] - seconds), 6):
        work = [0, 0, 0]
        for at, prompt, answer in rows:
            if begin <= at < begin + seconds:
                work[min(2, int((at - begin) / seconds * 3))] += prompt + answer
        if sum(work) and work[1] > best * 1.0 and work[1] > 1.5 * work[2]:
            best, start = work[1], float(begin)
    return start


def bench(options, server, path, arguments, timeout=900):
    text = prompt_text(options)
    command = [options.protean, "bench", "serve", "--base-url", server.url, "--quiet", "--ignore-eos",
               "--prompt-file", str(text), "--max-input-len", "600", "--max-output-len", "300",
               "--json", str(path.with_suffix(".json")), *arguments]
    subprocess.run(command, check=True, timeout=timeout, stdout=subprocess.DEVNULL)
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def prompt_text(options):
    books = sorted(Path(options.data, BOOKS).rglob("*.txt"))
    if not books:
        raise SystemExit(f"{options.data}/{BOOKS} has no text to make prompts of: give --data")
    return books[0]


class Saturation:
    """How many of a trace's requests a second the two static forms can serve at all."""

    def __init__(self, trace, options):
        self.options = options
        self.path = Path(options.data, FILES[trace])

    def rates(self, folder):
        if self.options.load:
            return None
        found = {}
        for dtype in ("bf16", self.options.levels[-1]):
            server = served.Server(self.options.protean, self.options.model, self.options.memory,
                                   ["--dtype", dtype, "--morph", "off"], self.options.server_flags)
            try:
                result = bench(self.options, server, folder / f"saturation-{dtype}",
                               ["--trace", str(self.path), "--length-scale", f"{self.options.length_scale}",
                                "--request-rate", "inf", "--max-concurrency", "64", "--duration", "10"])
            finally:
                server.stop()
            found[dtype] = result["request_throughput"]
        return found


class Piece:
    def __init__(self, trace, options, rates):
        self.options = options
        self.trace = trace
        self.path = Path(options.data, FILES[trace])
        rows = read_trace(self.path)
        self.start = burst(rows, options.seconds)
        requests = sum(self.start <= at < self.start + options.seconds for at, _, _ in rows) / options.seconds
        self.rates = rates
        # The mean over the piece is what full precision serves at most, so its burst is above that.
        self.load = options.load or 0.9 * rates["bf16"] / requests

    def describe(self):
        text = (f"{self.options.seconds:g} s from {self.start:g} s on, {self.load:.2f} times its rate, "
                f"token counts x {self.options.length_scale:g}")
        if self.rates:
            text += "; closed loop: " + ", ".join(f"{dtype} {rate:.1f}" for dtype, rate in self.rates.items()) + " requests/s"
        return text

    def send(self, server, path):
        scale = 1 / self.load
        arguments = ["--trace", str(self.path), "--trace-start", f"{self.start}",
                     "--duration", f"{self.options.seconds}", "--time-scale", f"{scale}",
                     "--length-scale", f"{self.options.length_scale}", "--temperature", "1",
                     "--extra-body", '{"logprobs": 0, "return_token_ids": true}',
                     "--slo-ttft-ms", f"{self.options.slo_ttft_s * 1000:g}",
                     "--save-answers", str(path.with_suffix(".answers.jsonl"))]
        return bench(self.options, server, path, arguments)
