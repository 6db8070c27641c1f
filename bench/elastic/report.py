"""Reports runs: one line for each, one JSON object, and a page with tables and charts."""

import datetime
import json
import math
import os
import platform
import shlex
import statistics
from pathlib import Path

import plot

QUIET = 0.8  # a part of a window offers less than this share of the capacity
PAUSE_S = 1  # swaps further apart belong to two changes of form


def records(run):
    return [one for one in run["bench"]["requests"] if one["outcome"] == "completed"]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else math.nan


def late_share(bench, slo_ttft_s):
    """Returns the share of requests whose first token was late. Failed requests count as late."""
    done = [one for one in bench["requests"] if one["outcome"] == "completed"]
    late = sum(one["ttft_ms"] > 1000 * slo_ttft_s for one in done) + bench["failed"]
    return late / max(1, len(done) + bench["failed"])


def full_precision(run, ranges):
    """Returns the share of tokens drawn at full precision in some ranges of time, NaN if none was."""
    drawn = full = 0
    for sample, after in zip(run["watched"], run["watched"][1:]):
        if any(begin <= sample["at_s"] < end for begin, end in ranges):
            drawn += after["drawn"] - sample["drawn"]
            full += after["drawn_full"] - sample["drawn_full"]
    return full / drawn if drawn else math.nan


def quiet(one):
    """Returns the parts of a window that offer little, if the part before does too, in which what burst has been served."""
    length = one["seconds"] / len(one["parts"])
    return [(i * length, (i + 1) * length) for i, part in enumerate(one["parts"])
            if max(part, one["parts"][i - 1] if i else 0) < QUIET]


def changes(run):
    """Returns how often the form changed: swaps in one direction without a pause are one change."""
    count, last_s, direction = 0, -math.inf, None
    for sample, after in zip(run["watched"], run["watched"][1:]):
        for way in ("down", "up"):
            if after[way] > sample[way]:
                if way != direction or after["at_s"] - last_s > PAUSE_S:
                    count += 1
                last_s, direction = after["at_s"], way
    return count


def numbers(run, one):
    """Returns what the tables show of a run."""
    ttft = [record["ttft_ms"] / 1000 for record in records(run)]
    quality = run.get("quality") or {}
    always = [(-math.inf, math.inf)]
    fixed_share = 1.0 if run["name"] == "bf16" else 0.0
    found = {
        "p50_ttft_s": percentile(ttft, 0.5),
        "p95_ttft_s": percentile(ttft, 0.95),
        "p99_tpot_ms": run["bench"]["p99_tpot_ms"],
        "late": late_share(run["bench"], one["slo_ttft_s"]),
        "failed": run["bench"]["failed"],
        "tokens_per_s": run["bench"]["output_throughput"],
        "full_precision_share": full_precision(run, always) if run["morphs"] else fixed_share,
        "full_precision_share_quiet": full_precision(run, quiet(one)) if run["morphs"] else fixed_share,
        "kv_blocks_peak": max((sample["kv_blocks"] for sample in run["watched"]), default=0),
        "preemptions": run["watched"][-1]["preemptions"] if run["watched"] else 0,
        "kl": quality.get("kl"),
    }
    if run["morphs"]:
        found["changes_per_minute"] = changes(run) / (one["seconds"] / 60)
    return found


def line(run, one):
    now = numbers(run, one)
    return (f"  {run['name']:12} TTFT P95 {now['p95_ttft_s']:7.2f} s, late {now['late']:6.1%}, at full precision "
            f"{now['full_precision_share']:4.0%}, KV up to {now['kv_blocks_peak']:.0f} blocks")


def known(values):
    return [value for value in values if value is not None and not math.isnan(value)]


def together(every):
    """Returns the medians of several runs' numbers, and the least and the greatest P95 TTFT."""
    columns = {key: known(now[key] for now in every) for key in every[0]}
    medians = {key: statistics.median(values) if values else None for key, values in columns.items()}
    return {**medians, "p95_ttft_s_spread": [min(now["p95_ttft_s"] for now in every), max(now["p95_ttft_s"] for now in every)]}


def compare(systems, budget):
    """Adds to systems that morph their TTFT P95 relative to the best static form that loses at most `budget` nats a token."""
    ttft = "p95_ttft_s"
    best = min((now for now in systems.values() if "changes_per_minute" not in now and now[ttft] and now["kl"] is not None
                and now["kl"] <= budget), key=lambda now: now[ttft], default=None)
    for now in systems.values():
        if best and now[ttft] and "changes_per_minute" in now:
            now["p95_ttft_over_best_static"] = now[ttft] / best[ttft]
    return systems


def summary(found, budget):
    """Returns the medians over windows and turns: {trace: {load: {system: numbers}}}."""
    gathered = {}
    for one in found:
        systems = gathered.setdefault(one["trace"], {}).setdefault(f"{one['load']:g}", {})
        for name, runs in one["runs"].items():
            systems.setdefault(name, []).extend(numbers(run, one) for run in runs)
    return {trace: {load: compare({name: together(every) for name, every in systems.items() if every}, budget)
                    for load, systems in loads.items()} for trace, loads in gathered.items()}


def share(value):
    return "" if value is None else f"{value:.0%}"


def table(systems):
    rows = ["| system | TTFT P50, P95 s | spread of P95 | late | TPOT P99 ms | output tokens/s | peak KV blocks | KL, nats/token "
            "| at full precision: all tokens, in quiet parts | changes a minute | P95 over best static |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, now in systems.items():
        kl = "" if now["kl"] is None else f"{now['kl']:.4f}"
        low, high = now["p95_ttft_s_spread"]
        over = "" if "p95_ttft_over_best_static" not in now else f"{now['p95_ttft_over_best_static']:.2f}"
        changed = "" if "changes_per_minute" not in now else f"{now['changes_per_minute']:.1f}"
        rows.append(f"| {name} | {now['p50_ttft_s']:.2f}, {now['p95_ttft_s']:.2f} | {low:.2f} to {high:.2f} | {now['late']:.1%} | "
                    f"{now['p99_tpot_ms']:.0f} | {now['tokens_per_s']:.0f} | {now['kv_blocks_peak']:.0f} | {kl} | "
                    f"{share(now['full_precision_share'])}, {share(now['full_precision_share_quiet'])} | {changed} | {over} |")
    return "\n".join(rows)


def pictures(one, folder):
    """Draws KV and precision over time, of the first run of each system. Returns the names of the files."""
    name = f"elastic-{one['trace']}-{one['load']:g}"
    first = {system: runs[0] for system, runs in one["runs"].items() if runs}
    kv = {"bf16: blocks": [], "bf16: used": []} if "bf16" in first else {}
    for system in [system for system in ("bf16", "balanced") if system in first]:
        watched = first[system]["watched"]
        kv[f"{system}: blocks"] = [(sample["at_s"], sample["kv_blocks"]) for sample in watched]
        kv[f"{system}: used"] = [(sample["at_s"], sample["kv_used"]) for sample in watched]
    full = {system: [(sample["at_s"], sample["full_layers"] / max(1, sample["layers"])) for sample in run["watched"]]
            for system, run in first.items() if run["morphs"]}
    length = one["seconds"] / len(one["parts"])
    offered = [(at, part) for i, part in enumerate(one["parts"]) for at in (i * length, (i + 1) * length)]
    full["offered, of the capacity"] = offered
    drawn = {"kv": plot.lines(kv, "seconds", "KV blocks"),
             "form": plot.lines(full, "seconds", "share of layers at full precision")}
    for what, svg in drawn.items():
        (folder / f"{name}-{what}.svg").write_text(svg, encoding="utf-8")
    return [f"{name}-{what}.svg" for what in drawn]


def machine():
    model = next((text.split(":", 1)[1].strip() for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                  if text.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}"


def write(found, options, folder, command):
    found_summary = summary(found, options.quality_budget)
    parts = ["# A form that follows the load, measured", "",
             f"{machine()}, {datetime.date.today()}, `{shlex.join(['bench/elastic/run', *command[1:]])}`.",
             f"All systems have {options.memory} for weights, KV cache and activations. The best static form is the one with the "
             f"lowest TTFT P95 of those that lose at most {options.quality_budget:g} nats a token.", ""]
    for trace, loads in found_summary.items():
        windows = {one["start_s"]: one for one in found if one["trace"] == trace}.values()
        told = "; ".join(f"{one['start_s']:g} s (peak {one['peak']:.1f} times the mean, full precision saturates at "
                         f"{one['saturated']:.0f} tokens/s, late after {one['slo_ttft_s']:.1f} s)" for one in windows)
        parts += [f"## {trace}", "", f"Windows of {options.seconds:g} s from {told}.", ""]
        for load, systems in loads.items():
            parts += [f"Peak {load} times the capacity at full precision:", "", table(systems), ""]
            one = next(one for one in found if one["trace"] == trace and f"{one['load']:g}" == load)
            parts += [f"![{name}]({name})" for name in pictures(one, folder)] + [""]
    (folder / "results.md").write_text("\n".join(parts), encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(found_summary, indent=1), encoding="utf-8")
