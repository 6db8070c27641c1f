"""A server of several models, and the requests of two Azure traces mixed, each to one of the models."""

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import cluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reshard"))
import open_loop  # noqa: E402


def ask(url, body=None, method=None, timeout=120):
    """Returns the status and the JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=timeout) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Server:
    """`protean serve` with these arguments. `models` are the names that it serves."""

    def __init__(self, protean, arguments, log):
        self.log = open(log, "w", encoding="utf-8")
        self.process = subprocess.Popen([protean, "serve", "--port", "0", "--admin-port", "0", *arguments],
                                        stderr=subprocess.PIPE, text=True)
        self.url = self.admin = None
        self.lines, self.deployed_s, listening = [], [], threading.Event()
        threading.Thread(target=self._read, args=(listening,), daemon=True).start()
        if not listening.wait(300) or self.admin is None:
            self.stop()
            raise SystemExit("the server did not start:\n" + "".join(self.lines[-20:]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _read(self, listening):
        for line in self.process.stderr:
            self.log.write(line)
            self.log.flush()
            self.lines = self.lines[-200:] + [line]
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found[1]
            if found := re.search(r"operators' port: (\S+)", line):
                self.admin = "http://" + found[1]
            if found := re.search(r" is deployed after ([0-9.]+) s", line):
                self.deployed_s.append(float(found[1]))
            if self.url and self.admin:
                listening.set()
        listening.set()

    def models(self):
        return {model["model"]: model for model in ask(self.admin + "/admin/models")[1]["models"]}

    def memory(self):
        """Bytes of the process that no file holds: weights, KV, buffers and the program's own."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            status = dict(line.split(":", 1) for line in file)
        return sum(int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))

    def deploy(self, name, fields, models=None):
        """Deploys a model and waits until it serves, by what `models` returns (by default the server is asked each 20 ms)."""
        models = models or self.models
        status, shown = ask(self.admin + "/admin/models", {"name": name, **fields}, "POST")
        if status != 202:
            raise SystemExit(f"{name} is not deployed: {shown}")
        while (now := models().get(name, {"residence": "failed"}))["residence"] == "deploying":
            time.sleep(0.02)
        if now["residence"] != "awake":
            raise SystemExit(f"{name} is not deployed: {now}")

    def remove(self, name, models=None):
        ask(f"{self.admin}/admin/models?model={name}", method="DELETE")
        while name in (models or self.models)():
            time.sleep(0.02)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.log.close()


def mixed(seconds, rates, most_prompt, most_output, seed=1):
    """Requests to each model at its mean rate: arrivals and lengths of the Azure code and conversation traces in turns, which keep their bursts.
    `rates` are requests a second by model."""
    requests = []
    for place, (model, rate) in enumerate(rates.items()):
        trace = cluster.read_trace(("code", "conv")[place % 2], 1.0, seed=seed + place)
        trace = [r for r in trace if r["at"] < seconds]
        rng = random.Random(seed + place)
        keep = min(1.0, rate * seconds / max(1, len(trace)))
        requests += [open_loop.Sent(r["at"], min(r["prompt"], most_prompt), max(2, min(r["output"], most_output)), model=model)
                     for r in trace if rng.random() < keep]
    return sorted(requests, key=lambda request: request.due_s)


def poisson(seconds, model, rate, prompt_tokens, output_tokens, seed=1):
    rng, requests, at = random.Random(seed), [], 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        requests.append(open_loop.Sent(at, rng.randint(prompt_tokens // 2, prompt_tokens * 3 // 2), output_tokens, model=model))
    return requests


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
