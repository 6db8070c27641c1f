"""The systems that are compared: Protean's intents, decided by `protean plan`, and the paper's baselines as policies.

A system places models: deploy(place, cluster) is called when model number `place` of the set is due and returns its
instances, or None if it does not fit."""

import json
import os
import subprocess

from cluster import DEVICES, Cluster, Instance

# How AlpaServe may divide the 8 devices: TP and PP of each of its groups.
DIVISIONS = [(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (8, 1)]
GATHER = 1.94  # section 8.1: fully sharded takes 94 % longer than the configuration for min-latency


class Plans:
    """Asks `protean plan` and remembers the estimates of each model for one load."""

    def __init__(self, binary, folder, load):
        self.binary, self.folder, self.load, self.rows = binary, folder, load, {}

    def ask(self, model, intent, cluster, flags=()):
        path = os.path.join(self.folder, "devices.toml")
        with open(path, "w") as file:
            for free, load in zip(cluster.free, cluster.loads()):
                file.write(f'[[device]]\nprofile = "A6000"\nfree = "{max(0, int(free))}"\nload = {load:.6f}\n')
        asked = subprocess.run(
            [self.binary, "plan", "--like", model, "--devices", path, "--space", "iserve", "--intent", intent, "--json",
             "--prompt-tokens", str(self.load["prompt"]), "--output-tokens", str(self.load["output"]),
             "--variant-cache", self.folder, *flags], capture_output=True, text=True)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def estimates(self, model):
        if model not in self.rows:
            self.rows[model] = self.ask(model, "min-memory", Cluster())["configurations"]
        return self.rows[model]

    def plain(self, model):
        """The unquantised and unpruned configurations."""
        return [r for r in self.estimates(model)
                if r["weights"] == "bf16" and r["kv"] == "bf16" and r["pruning"] == "none"]

    def divided(self, model, tensor, pipeline):
        """The unquantised configuration of these degrees; the nearest one if the model has too few KV heads."""
        rows = [r for r in self.plain(model) if r["devices"] <= tensor * pipeline]
        return min(rows, key=lambda r: (abs(r["tensor"] - tensor) + abs(r["pipeline"] - pipeline), -r["devices"]))

    def smallest(self, model):
        """The fastest unquantised configuration on as few devices as it fits on."""
        fitting = [r for r in self.plain(model) if r["fits"]]
        return min(fitting, key=lambda r: (r["devices"], r["latency_ms"]))

    def instance(self, row, devices, in_flight):
        devices = devices[:row["devices"]]
        capacity = row["pipeline"] if in_flight == "stages" else 1
        return Instance(row, devices, [row["memory_bytes"] / len(devices)] * len(devices), self.load, capacity)


class Intents:
    """Each model for its intent, by iServe's sections 4 to 6."""

    def __init__(self, plans, models, intents, flags=(), in_flight="one"):
        self.plans, self.models, self.intents = plans, models, intents
        self.flags, self.in_flight = flags, in_flight

    def deploy(self, place, cluster):
        plan = self.plans.ask(self.models[place], self.intents[place], cluster, self.flags)
        if plan is None:
            return None
        choice = plan["choice"]
        devices = [d for stage in choice["stages"] for d in stage["devices"]]
        memory = [stage["device_memory_bytes"] for stage in choice["stages"] for _ in stage["devices"]]
        capacity = choice["pipeline"] if self.in_flight == "stages" else 1
        return [Instance(choice, devices, memory, self.plans.load, capacity)]


class Static:
    """Every model unquantised in the same degrees on all devices."""

    def __init__(self, plans, models, tensor, pipeline, gather=False, in_flight="one"):
        self.plans, self.models, self.degrees = plans, models, (tensor, pipeline)
        self.gather, self.in_flight = gather, in_flight

    def deploy(self, place, cluster):
        model = self.models[place]
        row = dict(self.plans.divided(model, *self.degrees))
        if self.gather:
            best = min(self.plans.estimates(model), key=lambda r: r["latency_ms"])
            row["tpot_ms"], row["ttft_ms"] = GATHER * best["tpot_ms"], GATHER * best["ttft_ms"]
        instance = self.plans.instance(row, list(range(DEVICES)), self.in_flight)
        return [instance] if cluster.has_room(instance) else None


class Placed:
    """A placement that is known in advance: for each model the devices of its instances."""

    def __init__(self, plans, models, degrees, groups_of, in_flight):
        self.plans, self.models, self.degrees, self.groups_of = plans, models, degrees, groups_of
        self.in_flight = in_flight

    def deploy(self, place, _):
        row = self.plans.divided(self.models[place], *self.degrees)
        return [self.plans.instance(row, group, self.in_flight) for group in self.groups_of[place]] or None


def alpaserve(plans, models, simulate, may_drop, in_flight):
    """AlpaServe's search as its section 4.2 accelerates it, with the whole trace known in advance: for each division of
    the devices into equal groups, places the model with most requests that miss the SLO on the group with room that
    is used least, until nothing fits, and takes the placement with most requests in time. `simulate` returns the
    requests of a placement, each with "late", and the busy seconds of the devices. If models may not be dropped, each
    is placed once before any is placed twice, and divisions without room for all are left out. Models are not sorted
    into buckets."""
    best = None
    for degrees in DIVISIONS:
        size = degrees[0] * degrees[1]
        groups = [list(range(first, first + size)) for first in range(0, DEVICES, size)]
        cluster, groups_of = Cluster(), [[] for _ in models]
        while True:
            system = Placed(plans, models, degrees, [list(groups) for groups in groups_of], in_flight)
            requests, busy_s = simulate(system)
            late = [0] * len(models)
            for request in requests:
                late[request["model"]] += request["late"]
            whole = all(groups_of)
            if may_drop or whole:
                in_time = len(requests) - sum(late)
                if best is None or in_time > best[0]:
                    best = (in_time, system)
            order = sorted(range(len(models)), key=lambda m: (bool(groups_of[m]) and not may_drop, -late[m]))
            choices = [(m, g) for m in order if late[m] > 0 or not groups_of[m]
                       for g in sorted(groups, key=lambda g: sum(busy_s[d] for d in g))
                       if g not in groups_of[m] and cluster.has_room(
                           plans.instance(plans.divided(models[m], *degrees), g, in_flight))]
            if not choices or (not may_drop and not whole and groups_of[choices[0][0]]):
                break
            model, group = choices[0]
            cluster.add(plans.instance(plans.divided(models[model], *degrees), group, in_flight))
            groups_of[model].append(group)
    return best[1] if best else Placed(plans, models, (1, 1), [[] for _ in models], in_flight)
