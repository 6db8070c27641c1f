"""Reports runs: one line for each, one JSON object, and a page with tables and charts."""

import datetime
import math
import os
import platform
import shlex
import statistics
from pathlib import Path

import plot

BASE = "bf16"


def records(run):
    return [one for one in run["bench"]["requests"] if one["outcome"] == "completed"]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def ttft_p95_s(bench):
    return percentile([one["ttft_ms"] / 1000 for one in bench["requests"] if one["outcome"] == "completed"], 0.95)


def late_share(bench, slo_ttft_s):
    """Returns the share of requests whose first token was late. Failed requests count as late."""
    done = [one for one in bench["requests"] if one["outcome"] == "completed"]
    late = sum(one["ttft_ms"] > 1000 * slo_ttft_s for one in done) + bench["failed"]
    return late / max(1, len(done) + bench["failed"])


def restore_s(run, one):
    """Returns the longest time that layers stayed lowered after the last pressure, or None if they were lowered at the end.
    Pressure is the burst, a request that waited more than a quarter of the SLO, or more KV in use than full precision has."""
    waits = [(record["sent_s"], record["sent_s"] + record["ttft_ms"] / 1000) for record in records(run)
             if record["ttft_ms"] / 1000 > one["slo_ttft_s"] / 4]
    full_blocks = run["watched"][0]["kv_blocks"]
    longest = 0
    pressed_s = None  # time of the last pressure while layers are lowered
    for sample in run["watched"]:
        at_s = sample["at_s"]
        if sample["full_layers"] < sample["layers"]:
            if (pressed_s is None or at_s <= one["burst_s"][1] or sample["kv_used"] > full_blocks
                    or any(begin <= at_s < end for begin, end in waits)):
                pressed_s = at_s
        elif pressed_s is not None:
            longest = max(longest, at_s - pressed_s)
            pressed_s = None
    return None if pressed_s is not None else longest


def full_shares(run, one):
    """Yields the share of tokens at full precision before the burst, during it, and from 10 s after it."""
    begin, end = one["burst_s"]
    for since_s, until_s in ((0, begin), (begin, end), (end + 10, math.inf)):
        samples = [sample for sample in run["watched"] if since_s <= sample["at_s"] < until_s]
        drawn = samples[-1]["drawn"] - samples[0]["drawn"] if samples else 0
        yield (samples[-1]["drawn_full"] - samples[0]["drawn_full"]) / drawn if drawn else math.nan


def numbers(run, one):
    slo_ttft_s = one["slo_ttft_s"]
    bench, watched = run["bench"], run["watched"]
    ttft = [one["ttft_ms"] / 1000 for one in records(run)]
    quality = run.get("quality") or {}
    return {
        "ttft_p50_s": percentile(ttft, 0.5),
        "ttft_p95_s": ttft_p95_s(bench),
        "tpot_p50_ms": bench["median_tpot_ms"],
        "tpot_p99_ms": bench["p99_tpot_ms"],
        "violations": late_share(bench, slo_ttft_s),
        "failed": bench["failed"],
        "tokens_per_s": bench["output_throughput"],
        "saturated": statistics.median(run["saturated"]),
        "kv_blocks_peak": kv_blocks_peak(run),
        "preemptions": watched[-1]["preemptions"] if watched else 0,
        "kl": quality.get("kl"),
        "kl_error": quality.get("kl_error"),
        "perplexity_increase": quality.get("perplexity_increase"),
        "restore_s": restore_s(run, one),
        "full_shares": list(full_shares(run, one)),
    }


def median_run(runs):
    """Returns the run with the median P95 TTFT; of two runs the slower."""
    return sorted(runs, key=lambda run: ttft_p95_s(run["bench"]))[len(runs) // 2]


def kv_blocks_peak(run):
    return max((sample["kv_blocks"] for sample in run["watched"]), default=0)


def line(run, one):
    return (f"  {run['name']:12} TTFT P95 {ttft_p95_s(run['bench']):7.2f} s, late "
            f"{late_share(run['bench'], one['slo_ttft_s']):6.1%}, KV up to {kv_blocks_peak(run):.0f} blocks")


def ratio(a, b):
    return a / b if a is not None and b else None


def throughput_gain(ours, base):
    """Returns the median over turns of the throughput ratio of each turn."""
    gains = [ours_now / base_now for ours_now, base_now in zip(ours["saturated"], base["saturated"]) if base_now]
    return statistics.median(gains) if gains else None


def summary(found, lowest):
    """Returns the ratios of balanced mode for each trace; None for ratios to a system that was not run."""
    traces = {}
    for one in found:
        runs = {name: numbers(run, one) for name, run in one["runs"].items()}
        base, low, ours = (runs.get(name) for name in (BASE, "w4", "balanced"))
        if not base or not ours:
            continue
        def avoided(loss):
            lost = ratio(ours[loss], low[loss]) if low else None
            return None if lost is None else 1 - lost

        traces[one["trace"]] = {
            "p95_ttft_gain": ratio(base["ttft_p95_s"], ours["ttft_p95_s"]),
            "slo_violation_drop": 1 - ours["violations"] / base["violations"] if base["violations"] else None,
            "throughput_gain": throughput_gain(one["runs"]["balanced"], one["runs"][BASE]),
            "kv_gain": ratio(ours["kv_blocks_peak"], base["kv_blocks_peak"]) - 1,
            "quality_loss_avoided": avoided("kl"),
            "perplexity_increase_avoided": avoided("perplexity_increase"),
            **{f"p95_ttft_vs_{name}": ratio(ours["ttft_p95_s"], runs[name]["ttft_p95_s"])
               for name in ("w4", lowest) if name in runs},
            "restore_s": ours["restore_s"],
        }
    return traces


def table(one):
    rows = ["| system | TTFT P50 / P95 s | TPOT P50 / P99 ms | late | output tokens/s | all tokens/s, saturated | peak KV blocks "
            "| preemptions | KL, nats/token | perplexity increase | at full precision before / in / after the burst |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, run in one["runs"].items():
        now = numbers(run, one)
        kl = "" if now["kl"] is None else f"{now['kl']:.4f} ± {now['kl_error']:.4f}"
        perplexity = "" if now["perplexity_increase"] is None else f"{now['perplexity_increase']:.2%}"
        full = " / ".join(f"{share:.0%}" for share in now["full_shares"])
        rows.append(f"| {name} | {now['ttft_p50_s']:.2f} / {now['ttft_p95_s']:.2f} | {now['tpot_p50_ms']:.0f} / "
                    f"{now['tpot_p99_ms']:.0f} | {now['violations']:.1%} | {now['tokens_per_s']:.0f} | {now['saturated']:.0f} | "
                    f"{now['kv_blocks_peak']:.0f} | {now['preemptions']:.0f} | {kl} | {perplexity} | {full} |")
    return "\n".join(rows)


def timely_rates(one):
    """Returns the lines of a paragraph about --rates; none if no rates were tried."""
    timely = {name: max((rate for rate, p95_s in run["rates"] if p95_s <= one["slo_ttft_s"]), default=0)
              for name, run in one["runs"].items() if run["rates"]}
    if not timely:
        return []
    return ["Highest rate of Poisson arrivals with a P95 TTFT within the SLO, requests/s: "
            + ", ".join(f"{name} {rate:.2f}" for name, rate in timely.items()) + ".", ""]


def pictures(one, folder, options):
    """Draws Figures 4 to 7 of the MorphServe paper for this run. Returns the names of the files."""
    name = f"elastic-{one['trace']}"
    quality = {system: [(numbers(run, one)["kl"] or 0, numbers(run, one)["ttft_p95_s"])]
               for system, run in one["runs"].items()}
    kv = {}
    for system in (BASE, options.levels[-1], "balanced"):
        if run := one["runs"].get(system):
            kv[f"{system}: blocks"] = [(sample["at_s"], sample["kv_blocks"]) for sample in run["watched"]]
            kv[f"{system}: used"] = [(sample["at_s"], sample["kv_used"]) for sample in run["watched"]]
    tpot = {}
    for system, run in one["runs"].items():
        times = sorted(record["tpot_ms"] for record in records(run) if record.get("tpot_ms", -1) >= 0)
        tpot[system] = [(time, (i + 1) / len(times)) for i, time in enumerate(times)]
    drawn = {
        "quality": plot.points(quality, "KL of the served tokens, nats/token", "TTFT P95, s"),
        "kv": plot.lines(kv, "seconds", "KV blocks"),
        "tpot": plot.lines(tpot, "time per output token, ms", "share of requests"),
    }
    if any(run["rates"] for run in one["runs"].values()):
        drawn["rates"] = plot.lines({name: run["rates"] for name, run in one["runs"].items()}, "requests/s", "TTFT P95, s")
    for what, svg in drawn.items():
        (folder / f"{name}-{what}.svg").write_text(svg, encoding="utf-8")
    return [f"{name}-{what}.svg" for what in drawn]


def machine():
    model = next((text.split(":", 1)[1].strip() for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                  if text.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}"


def write(found, options, folder, command):
    parts = ["# Morphing under bursts, measured", "",
             f"{machine()}, {datetime.date.today()}, `{shlex.join(['bench/elastic/run', *command[1:]])}`.",
             f"All systems have {options.memory} for weights, KV cache and activations. KL is estimated on the served tokens as "
             "the mean of log(q/p) + p/q - 1, where q is the probability at the form that sampled a token and p the one at full "
             "precision. The perplexity increase is exp(mean of log(q/p)) - 1. \"After the burst\" begins 10 s after its end.", ""]
    for one in found:
        parts += [f"## {one['trace']}", "", one["load"] + ".", "", table(one), "", *timely_rates(one)]
        parts += [f"![{name}]({name})" for name in pictures(one, folder, options)] + [""]
    (folder / "results.md").write_text("\n".join(parts), encoding="utf-8")
