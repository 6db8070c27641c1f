"""Runs the server under test, samples its metrics, and scores its answers."""

import json
import math
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor


def ask(url, body=None, method=None, timeout=60):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode()


class Server:
    def __init__(self, protean, model, memory, flags, more, packed=True):
        command = [protean, "serve", model, "--port", "0", "--admin-port", "0", "--device-memory", memory,
                   "--log-level", "info", *flags, *more]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        self.url = self.admin = None
        ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        if not ready.wait(120) or self.url is None:
            self.stop()
            raise SystemExit("the server did not start:\n" + "".join(self.log))
        if packed:
            self.wait_until_packed()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _read(self, ready):
        for text in self.process.stderr:
            self.log = self.log[-200:] + [text]
            if found := re.search(r"listening on (http://\S+)", text):
                self.url = found[1]
            if found := re.search(r"operators' port: (\S+)", text):
                self.admin = "http://" + found[1]
                ready.set()
        ready.set()

    def form(self):
        return json.loads(ask(self.admin + "/admin/form"))

    def max_model_len(self):
        return json.loads(ask(self.url + "/v1/models"))["data"][0]["max_model_len"]

    def wait_until_packed(self):
        """Waits until all variants that the policy may choose are within its reach."""
        while (packing := self.form()["packing"]) and packing["done"] < packing["total"] and not packing["failure"]:
            time.sleep(0.1)

    def metrics(self):
        values = {}
        for text in ask(self.url + "/metrics").splitlines():
            if not text.startswith("#"):
                name, value = text.rsplit(" ", 1)
                values[name] = float(value)
                bare = name.split("{")[0]
                values[bare] = values.get(bare, 0) + float(value) if "{" in name else float(value)
        return values

    def lower(self, layers, precision):
        wish = ["bf16"] * len(self.form()["form"]["layer_precision"])
        for layer in layers:
            wish[layer] = precision
        self.change_layers(wish)

    def change_layers(self, wish):
        """Asks for a form and waits for it. Returns when it was asked for and when it was reached."""
        began = time.monotonic()
        ask(self.admin + "/admin/form", {"layers": wish}, "PUT")
        while (now := self.form())["form"]["text"] != now["wanted"]["text"]:
            time.sleep(0.02)
        return began, time.monotonic()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()


def by_precision(metrics, name):
    """Returns a metric's sum over labels, and its part at full precision (labels bf16 and bf16:LAYERS)."""
    values = {labels: value for labels, value in metrics.items() if labels.startswith(name + "{")}
    return sum(values.values()), sum(value for labels, value in values.items()
                                     if re.search(r'precision="bf16(:\d+)?"', labels))


class Watch:
    """Samples the server's metrics four times a second."""

    NAMES = {"kv_blocks": "protean:kv_blocks_total", "kv_used": "protean:kv_blocks_used",
             "running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting",
             "preemptions": "vllm:num_preemptions_total", "tokens": "vllm:generation_tokens_total"}

    def __init__(self, server):
        self.samples = []
        self.server = server
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self):
        while not self.ended.wait(0.25):
            metrics = self.server.metrics()
            sample = {key: metrics.get(name, 0) for key, name in self.NAMES.items()}
            sample["at_s"] = time.monotonic()
            sample["layers"], sample["full_layers"] = by_precision(metrics, "protean:layers")
            sample["drawn"], sample["drawn_full"] = by_precision(metrics, "protean:generation_tokens_by_precision_total")
            for direction in ("down", "up"):
                sample[direction] = sum(value for labels, value in metrics.items() if
                                        labels.startswith("protean:precision_swaps_total{") and f'"{direction}"' in labels)
            self.samples.append(sample)

    def stop(self, clock_start_ns):
        """Stops sampling. Returns the samples on the clock of the load: the last one before its start, and all later ones."""
        self.ended.set()
        self.thread.join()
        samples = [{**sample, "at_s": sample["at_s"] - clock_start_ns / 1e9} for sample in self.samples]
        return [sample for sample, after in zip(samples, [*samples[1:], samples[-1]]) if after["at_s"] >= 0]


def answers(path):
    """Yields the prompt, output tokens and their log probabilities for each complete answer."""
    with open(path.with_suffix(".answers.jsonl"), encoding="utf-8") as lines:
        for text in lines:
            line = json.loads(text)
            if line["outcome"] != "completed":
                continue
            tokens, drawn = [], []
            for chunk in line["chunks"]:
                for choice in chunk.get("choices", []):
                    tokens += choice.get("token_ids") or []
                    drawn += (choice.get("logprobs") or {}).get("token_logprobs") or []
            if tokens and len(tokens) == len(drawn):
                yield line["request"]["prompt"], tokens, drawn


def full_logprobs(server, prompt, tokens):
    """Returns the log probabilities of an answer's tokens at full precision."""
    ids = prompt
    if isinstance(prompt, str):
        ids = json.loads(ask(server.url + "/tokenize", {"prompt": prompt}))["tokens"]
    body = {"prompt": ids + tokens, "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = json.loads(ask(server.url + "/v1/completions", body))
    return answer["choices"][0]["logprobs"]["token_logprobs"][len(ids):]


def score(server, path, most=100):
    """Scores the tokens of `most` answers, spread over the run: the KL divergence of the form that sampled them from full
    precision, and the relative increase of perplexity, from that of this form to that of full precision."""
    every = list(answers(path))
    with ThreadPoolExecutor(8) as pool:
        scored = list(pool.map(lambda one: (one[2], full_logprobs(server, one[0], one[1])),
                               every[::max(1, len(every) // most)]))
    gaps = [q - p for drawn, full in scored for q, p in zip(drawn, full)]
    if not gaps:
        return None
    # The mean of p/q - 1 over tokens sampled from q is 0. Adding it to log(q/p) removes most of the noise.
    parts = [math.exp(-gap) - 1 + gap for gap in gaps]
    mean = sum(parts) / len(parts)
    variance = sum((part - mean) ** 2 for part in parts) / max(1, len(parts) - 1)
    return {"kl": mean, "kl_error": math.sqrt(variance / len(parts)),
            "perplexity_increase": math.exp(sum(gaps) / len(gaps)) - 1}
