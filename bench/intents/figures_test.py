#!/usr/bin/env python3
"""Tests of the simulation of iServe's experiments and of the figures of estimates, with few requests worked out by hand. Need neither the program nor
traces."""

import argparse
import json
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import systems  # noqa: E402
from cluster import DEVICE_BYTES, DEVICES, WINDOW_S, Cluster, Instance  # noqa: E402


def script(name):
    loader = SourceFileLoader(name, str(HERE / name))
    module = module_from_spec(spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


simulate, estimates = script("simulate"), script("estimates")
LOAD = {"prompt": 100, "output": 11}


def row(tensor=1, pipeline=1, latency_ms=2000.0, share=0.5, fits=True, weights="bf16"):
    """A configuration: a prompt of 100 tokens takes 1 s and a token 0.1 s, unless latencies say otherwise."""
    return {"name": f"TP {tensor} x PP {pipeline}", "tensor": tensor, "pipeline": pipeline, "devices": tensor * pipeline, "weights": weights, "kv": "bf16",
            "pruning": "none", "ttft_ms": latency_ms / 2, "tpot_ms": latency_ms / 20, "latency_ms": latency_ms, "memory_bytes": share * DEVICE_BYTES,
            "fits": fits}


def instance(devices, of=None, in_flight=1):
    of = of or row()
    return Instance(of, devices, [of["memory_bytes"] / len(devices)] * len(devices), LOAD, in_flight)


def request(at, model=0, prompt=100, output=11):
    return {"at": at, "model": model, "prompt": prompt, "output": output}


def latencies(*sent):
    """Sends (instance, seconds) in order of time. Returns the latencies and the cluster."""
    cluster, requests = Cluster(), []
    for to, at in sent:
        cluster.advance(at)
        requests.append(request(at))
        cluster.send(requests[-1], to)
    cluster.finish()
    return [round(one["latency"], 6) for one in requests], cluster


class ClusterTest(unittest.TestCase):
    def test_work_is_the_prompt_and_a_step_for_each_further_token(self):
        one = instance([0])
        self.assertAlmostEqual(one.work_s(request(0)), 1.0 + 10 * 0.1)
        self.assertAlmostEqual(one.work_s(request(0, prompt=50, output=1)), 0.5)
        self.assertAlmostEqual(one.work_s(request(0, prompt=1, output=1)), 0.1)  # a step at least

    def test_an_instance_serves_one_request_after_the_other(self):
        one = instance([0])
        found, cluster = latencies((one, 0.0), (one, 0.5))
        self.assertEqual(found, [2.0, 3.5])
        self.assertAlmostEqual(cluster.busy_s[0], 4.0)
        self.assertAlmostEqual(cluster.ended, 4.0)

    def test_instances_share_a_device_fairly(self):
        # From 0.5 s on both run at half the speed: the first has 1.5 s left and ends at 3.5 s; the other one has then 0.5 s left.
        self.assertEqual(latencies((instance([0]), 0.0), (instance([0]), 0.5))[0], [3.5, 3.5])

    def test_a_request_needs_a_share_of_each_stage(self):
        pipeline = row(pipeline=2)
        found, cluster = latencies((instance([0, 1], pipeline), 0.0), (instance([0, 1], pipeline), 0.0))
        self.assertEqual(found, [2.0, 2.0])
        self.assertAlmostEqual(cluster.busy_s[1], 2.0)
        self.assertEqual(latencies(*[(instance([0, 1], pipeline), 0.0)] * 2)[0], [2.0, 4.0])
        both = instance([0, 1], pipeline, in_flight=2)
        self.assertEqual(latencies((both, 0.0), (both, 0.0))[0], [2.0, 2.0])

    def test_loads_are_of_the_last_two_minutes(self):
        cluster = Cluster()
        cluster.send(request(0, output=291), instance([3]))  # 30 s
        cluster.advance(WINDOW_S)
        self.assertAlmostEqual(cluster.loads()[3], 0.25)
        self.assertEqual(cluster.loads()[0], 0)
        cluster.advance(2 * WINDOW_S)
        self.assertAlmostEqual(cluster.loads()[3], 0)

    def test_memory_is_of_each_device(self):
        cluster, half = Cluster(), instance([0, 1], row(tensor=2, share=1.0))
        self.assertTrue(cluster.has_room(half))
        cluster.add(half)
        cluster.add(instance([1], row(share=0.5)))
        self.assertFalse(cluster.has_room(half))
        self.assertTrue(cluster.has_room(instance([0], row(share=0.5))))
        self.assertEqual(cluster.used, {0, 1})


class Plans(systems.Plans):
    """Plans whose estimates and answers are given."""

    def __init__(self, rows, choice=None):
        super().__init__("", "", LOAD)
        self.rows, self.choice = rows, choice

    def ask(self, model, intent, cluster, flags=()):
        return {"choice": self.choice} if self.choice else None


class SystemsTest(unittest.TestCase):
    def test_baselines_take_the_nearest_degrees(self):
        plans = Plans({"m": [row(), row(pipeline=4), row(2, 4), row(1, 4, weights="w4")]})
        self.assertEqual(plans.divided("m", 2, 4)["name"], "TP 2 x PP 4")
        self.assertEqual(plans.divided("m", 1, 4), row(pipeline=4))
        self.assertEqual(plans.divided("m", 1, 1)["name"], "TP 1 x PP 1")

    def test_the_smallest_is_the_fastest_on_the_fewest_devices_it_fits(self):
        plans = Plans({"m": [row(fits=False), row(2, 1, 900), row(1, 2, 1000), row(4, 1, 500), row(1, 1, 100, weights="w4")]})
        self.assertEqual(plans.smallest("m")["name"], "TP 2 x PP 1")

    def test_static_systems_use_all_devices_while_there_is_room(self):
        plans = Plans({"m": [row(8, 1, share=5.0), row(1, 1, 400, share=5.0)]})
        cluster = Cluster()
        [first] = systems.Static(plans, ["m"], 8, 1).deploy(0, cluster)
        self.assertEqual((first.devices, first.memory), (list(range(8)), [5 / 8 * DEVICE_BYTES] * 8))
        [gathering] = systems.Static(plans, ["m"], 8, 1, gather=True).deploy(0, cluster)
        self.assertAlmostEqual(gathering.tpot_s, 1.94 * 0.02)  # of the fastest configuration
        cluster.add(first)
        self.assertIsNone(systems.Static(plans, ["m"], 8, 1).deploy(0, cluster))

    def test_intents_are_placed_as_the_plan_says(self):
        stages = [{"devices": [4, 6], "device_memory_bytes": 30}, {"devices": [0, 1], "device_memory_bytes": 20}]
        [placed] = systems.Intents(Plans({}, row(2, 2) | {"stages": stages}), ["m"], ["min-cost"]).deploy(0, Cluster())
        self.assertEqual((placed.devices, placed.memory, placed.stages), ([4, 6, 0, 1], [30, 30, 20, 20], 2))
        self.assertIsNone(systems.Intents(Plans({}), ["m"], ["min-cost"]).deploy(0, Cluster()))

    def placed_by_alpaserve(self, may_drop):
        """Each instance fills a device. An instance of model 0 keeps 2 of its 20 requests in time, one of model 1 its only one."""
        plans = Plans({"a": [row(share=1.0)], "b": [row(share=1.0)]})

        def outcome(system):
            count = [len(some) for some in system.groups_of]
            late = [i >= 2 * count[0] for i in range(20)], [count[1] == 0]
            return [{"model": m, "late": one} for m in (0, 1) for one in late[m]], [0.0] * DEVICES
        groups = systems.alpaserve(plans, ["a", "b"], outcome, may_drop, "one").groups_of
        devices = [group[0] for some in groups for group in some]
        self.assertEqual(len(set(devices)), len(devices))
        return [len(some) for some in groups]

    def test_alpaserve_places_the_model_with_most_late_requests(self):
        self.assertEqual(self.placed_by_alpaserve(may_drop=True), [8, 0])  # 16 in time

    def test_alpaserve_places_each_model_once_before_any_twice(self):
        self.assertEqual(self.placed_by_alpaserve(may_drop=False), [7, 1])  # 15 in time


class Given:
    """Deploys model 0 on devices 0 and 1 and model 1 on device 0."""

    def deploy(self, place, _):
        return [instance([0, 1], row(tensor=2, share=1.0))] if place == 0 else [instance([0], row(share=0.25))]


class SummaryTest(unittest.TestCase):
    def outcome(self):
        # Model 1 is due at 10 s. Its request and the second one of model 0 share device 0: each takes twice 2 s.
        sent = [request(0.0), request(10.0, 1), request(10.0), request(9.0, 1)]
        return simulate.serve(Given(), ["a", "b"], sorted(sent, key=lambda one: one["at"]), 10)

    def test_requests_of_models_that_are_not_deployed_are_not_served(self):
        _, deployed, requests = self.outcome()
        self.assertEqual(sorted(deployed), [0, 1])
        self.assertEqual([round(one["latency"], 6) if "latency" in one else None for one in requests], [2.0, None, 4.0, 4.0])

    def test_numbers_of_the_figures(self):
        row_ = simulate.summary(self.outcome(), ["a", "b"], [3.0, 5.0])
        self.assertEqual((row_["served"], row_["requests"], row_["devices"]), (3, 4, 2))
        self.assertAlmostEqual(row_["mean_s"], 10 / 3)
        self.assertAlmostEqual(row_["p95_s"], 4.0)
        self.assertAlmostEqual(row_["per_s"], 3 / 14)  # the last one ends at 14 s
        self.assertAlmostEqual(row_["per_device_s"], 3 / 28)
        self.assertAlmostEqual(row_["attainment"], 2 / 4)
        self.assertAlmostEqual(row_["device_hours"], (2 * 2.0 + 2 * 4.0 + 1 * 4.0) / 3 / 3600)
        self.assertAlmostEqual(row_["cost"], (1.0 * 2.0 + 1.0 * 4.0 + 0.25 * 4.0) / 3 / 3600)
        self.assertAlmostEqual(row_["gib"], 1.25 * DEVICE_BYTES / 2**30)

    def test_systems_are_compared_by_the_requests_that_both_serve(self):
        ours = dict(simulate.summary(self.outcome(), ["a", "b"], [3.0, 5.0]), system="min-latency")
        theirs = dict(ours, system="all TP", latencies=[4.0, 9.0, None, 8.0], costs=[2 * cost if cost else None for cost in ours["costs"]],
                      per_s=ours["per_s"] / 4, per_device_s=ours["per_device_s"] / 3)
        _, other = simulate.compare([ours, theirs])
        saved = other["saved_by"]["min-latency"]
        self.assertAlmostEqual(saved["mean"], 1 - 3.0 / 6.0)
        self.assertAlmostEqual(saved["p95"], 1 - 4.0 / 8.0)
        self.assertAlmostEqual(saved["cost"], 0.5)
        self.assertAlmostEqual(saved["times_per_s"], 4.0)
        self.assertAlmostEqual(saved["times_per_device_s"], 3.0)


class EstimatesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        estimates.CPUS = 2
        folder = Path(self.folder.name)
        (folder / "config.json").write_text('{"num_hidden_layers": 5}')
        mib = {"1 1x1": (10, 30), "2 1x1": (13, 40), "5 1x1": (26, 70), "1 2x1": (6, 32), "2 2x1": (8, 40), "5 2x1": (14, 72), "5 1x2": (27, 75),
               "5 2x2": (20, 82)}
        runs = folder / "runs.jsonl"
        runs.write_text("".join(json.dumps({"key": f"{at} w8 bf16", "answers_s": {"64": ms / 1000}, "memory": size * 2**20}) + "\n"
                                for at, (ms, size) in mib.items()))
        self.bench = estimates.Bench(argparse.Namespace(model=folder, runs=runs))

    def test_answers_and_memory_by_layers(self):
        one, two = estimates.by_layers(self.bench, [("w8", "bf16")], 64)
        self.assertEqual(one["latency_s"], [0.010, 0.013, 0.026])
        self.assertAlmostEqual(one["latency_s_to_implied"], 13 / 14)
        self.assertAlmostEqual(one["memory_to_implied"], 40 / 40)
        self.assertEqual(two["tensor"], 2)
        self.assertAlmostEqual(two["memory_to_implied"], 40 / 42)
        self.assertEqual(estimates.text_of(one), "TP 1 w8    KV bf16  1, 2, all layers: 10.0, 13.0, 26.0 ms (2 to implied 0.93), 30.0, 40.0, 70.0 MiB (1.00)")

    def test_memory_by_division(self):
        [found] = estimates.by_division(self.bench, [("w8", "bf16")])
        self.assertEqual([found[field] / 2**20 for field in ("base", "tensor", "pipeline", "both_by_m1", "both")], [70, 2, 5, 77, 82])


if __name__ == "__main__":
    unittest.main()
