"""A cluster of devices in virtual time, and the requests of a trace.

An instance is a model on some of the devices. It serves its requests first come, first served, without batching, and
one at a time unless `in_flight` says that each stage of a pipeline may have one. A request needs 1/stages of each
device of its instance, and all requests slow down alike when a device is asked for more than it has."""

import csv
import os
import random
from bisect import bisect_left
from datetime import datetime
from pathlib import Path
from statistics import mean

DATA = Path(os.environ.get("PROTEAN_DATA", Path(__file__).parents[2] / "../shared/data"))
DEVICES = 8
DEVICE_BYTES = 48 * 2**30
WINDOW_S = 120  # of the load of a device, iServe section 6
LONGEST = 1024  # tokens of a prompt, iServe section 8


class Instance:
    """A deployed model: a row of the configuration map, the devices, and the bytes on each."""

    def __init__(self, row, devices, memory, load, in_flight=1):
        self.row, self.devices, self.memory = row, devices, memory
        self.stages, self.capacity = row["pipeline"], in_flight
        self.ttft_s, self.tpot_s, self.prompt = row["ttft_ms"] / 1000, row["tpot_ms"] / 1000, load["prompt"]
        self.waiting, self.running = [], 0

    def work_s(self, request):
        first = max(self.tpot_s, self.ttft_s * request["prompt"] / self.prompt)
        return first + self.tpot_s * (request["output"] - 1)


class Cluster:
    def __init__(self):
        self.free = [DEVICE_BYTES] * DEVICES
        self.demand = [0.0] * DEVICES
        self.busy_s = [0.0] * DEVICES
        self.marks = [(0.0, (0.0,) * DEVICES)]  # times, and the busy seconds of each device until then
        self.running = []  # [seconds of work left, speed, instance, request]
        self.now = 0.0
        self.ended = 0.0  # when the last request so far was done
        self.used = set()

    def advance(self, until):
        """Moves time on to `until` and ends the requests that are done by then."""
        while self.now < until:
            step, first = until - self.now, None
            for job in self.running:
                if job[0] <= step * job[1]:
                    step, first = job[0] / job[1], job
            for job in self.running:
                job[0] -= step * job[1]
            for device in range(DEVICES):
                self.busy_s[device] += step * min(1.0, self.demand[device])
            self.now += step
            self.marks.append((self.now, tuple(self.busy_s)))
            if first is None:
                return
            self.running = [job for job in self.running if job is not first]  # two requests may be equal
            self.ended = self.now
            first[3]["latency"] = self.now - first[3]["at"]
            self.share(first[2], -1)
            self.start(first[2])

    def share(self, instance, sign):
        instance.running += sign
        for device in instance.devices:
            self.demand[device] += sign / instance.stages

    def start(self, instance):
        while instance.waiting and instance.running < instance.capacity:
            request = instance.waiting.pop(0)
            self.running.append([instance.work_s(request), 1.0, instance, request])
            self.share(instance, +1)
        for job in self.running:
            job[1] = 1 / max(1.0, max(self.demand[device] for device in job[2].devices))

    def send(self, request, instance):
        request["instance"] = instance
        instance.waiting.append(request)
        self.start(instance)

    def finish(self):
        while self.running:
            self.advance(self.now + 3600)

    def busy_until(self, at):
        return self.marks[max(0, bisect_left(self.marks, (at,)) - 1)][1]

    def loads(self):
        """The share of the last two minutes in which each device was busy."""
        before = self.busy_until(self.now - WINDOW_S)
        return [min(1.0, (busy - then) / WINDOW_S) for busy, then in zip(self.busy_s, before)]

    def has_room(self, instance):
        return all(self.free[d] >= bytes_ for d, bytes_ in zip(instance.devices, instance.memory))

    def add(self, instance):
        for device, bytes_ in zip(instance.devices, instance.memory):
            self.free[device] -= bytes_
            self.used.add(device)


def share_gpt_prompts():
    with open(DATA / "traces/lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv", newline="") as file:
        lengths = [int(float(row["num_prefill_tokens"])) for row in csv.DictReader(file)]
    return [length for length in lengths if 1 <= length <= LONGEST]


def read_trace(kind, factor, compress=1.0, seed=1):
    """Requests of the hour of an Azure trace: each is kept with the probability `factor`, which keeps the pattern of
    arrivals, and times are divided by `compress`, which adds up adjacent intervals. Output lengths are the trace's; a
    prompt has the length of a random one of ShareGPT."""
    keep, prompts = random.Random(seed), share_gpt_prompts()
    requests, start = [], None
    with open(DATA / "traces/azure2023" / f"AzureLLMInferenceTrace_{kind}.csv", newline="") as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            start = at if start is None else start
            prompt = keep.choice(prompts)
            if keep.random() < factor:
                requests.append({"at": (at - start) / compress, "prompt": prompt, "output": max(1, int(row["GeneratedTokens"]))})
    return requests


def assign(requests, models, interval_s, at_once=1, seed=2):
    """Gives each request a random model of the set; drops those for a model that is not deployed yet. `at_once` models
    are deployed every `interval_s` seconds, the first ones at the start."""
    rng, sent = random.Random(seed), []
    for request in requests:
        wanted = rng.randrange(len(models))
        if request["at"] >= wanted // at_once * interval_s:
            sent.append(dict(request, model=wanted))
    return sent


def mean_load(requests):
    return {"prompt": round(mean(r["prompt"] for r in requests)), "output": round(mean(r["output"] for r in requests))}
