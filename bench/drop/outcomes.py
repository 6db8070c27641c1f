"""What simulated runs come to: latencies, late requests, demand for KV and changes of groups."""

import itertools
import math
from collections import Counter
from statistics import mean

BURST_AT, SCALES = 45, (2, 4, 5, 10)
PERCENTILES = {"50": 0.5, "90": 0.9, "99": 0.99, "999": 0.999}


def demand_of(result, seconds):
    """Tokens of KV that requests in the system need, by second."""
    demand = [0.0] * (int(seconds) + 1)
    for row in result["requests"]:
        if row["outcome"] != "completed":
            continue
        begin, first = row["due_s"], row["due_s"] + row["ttft_ms"] / 1000
        end = row["end_s"]
        for second in range(int(begin), min(int(end), int(seconds)) + 1):
            share = min(1.0, max(0.0, (second - first) / max(1e-9, end - first)))
            demand[second] += row["input_tokens"] + share * row["output_tokens"]
    return demand


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def changes_of(result):
    """Changes of groups that began and came to their end; an order may turn back before its change begins."""
    return [change for change in result.get("groups", {}).get("changes", []) if not change["failure"] and change["begun_s"] >= 0]


def cycles(changes):
    """How often the replica that was in most groups came into one. A group that becomes part of a larger one is no new cycle."""
    depth, entered = Counter(), Counter()
    for change in changes:
        for replica in change["replicas"]:
            entered[replica] += change["together"] and depth[replica] == 0
            depth[replica] += 1 if change["together"] else -1
    return max(entered.values(), default=0)


def restored(changes):
    """When the last group had parted; nothing if none was formed, or one stays."""
    apart = [change for change in changes if not change["together"]]
    return apart[-1]["done_s"] if apart and 2 * len(apart) == len(changes) else None


def medians(row, begin, end=math.inf):
    """P50 TTFT and TPOT and P99 TTFT of requests that arrive in a time, and how many they are; nothing if there are none."""
    some = [r for r in row["_rows"] if begin <= r["due_s"] < end]
    tpot = [r["tpot_ms"] for r in some if "tpot_ms" in r]
    ttft = [r["ttft_ms"] for r in some]
    return {"ttft_p50_ms": percentile(ttft, 0.5), "ttft_p99_ms": percentile(ttft, 0.99), "tpot_p50_ms": percentile(tpot, 0.5),
            "requests": len(some)} if tpot else None


def around(rows):
    """Medians before the burst and after the last restoring, of systems that drop and, in the same times, without."""
    without = next((row for row in rows if row["system"] == "recompute"), None)
    out = {}
    for row in rows:
        if without and row["restored_s"]:
            after = row["restored_s"]
            out[row["system"]] = {"restored_s": after, "before": medians(row, 0, BURST_AT), "after": medians(row, after),
                                  "without drop, before": medians(without, 0, BURST_AT), "without drop, after": medians(without, after)}
    return out


def grown_s(change):
    """When a group had more KV than its replicas, or if it never had, when it was formed."""
    return max(change["kv_grown_s"], change["done_s"])


def summary(name, result):
    done = [row for row in result["requests"] if row["outcome"] == "completed"]
    ttft, tpot = [row["ttft_ms"] for row in done], [row["tpot_ms"] for row in done if "tpot_ms" in row]
    groups = result.get("groups", {})
    formed = [change for change in changes_of(result) if change["together"]]
    return {"system": name, "served": len(done), "not_served": len(result["requests"]) - len(done),
            **{f"ttft_p{digits}_ms": percentile(ttft, share) for digits, share in PERCENTILES.items()},
            **{f"tpot_p{digits}_ms": percentile(tpot, share) for digits, share in PERCENTILES.items()},
            "whole_p50_s": percentile([row["end_s"] - row["due_s"] for row in done], 0.5),
            "tokens_per_s": sum(row["output_tokens"] for row in done) / max(row["end_s"] for row in done),
            "groups_formed": groups.get("together", 0), "groups_parted": groups.get("apart", 0),
            "changes_failed": groups.get("failures", 0), "bubbles": groups.get("bubbles", 0),
            "kv_exchanged_gib": groups.get("kv_bytes_exchanged", 0) / 2**30,
            "cycles": cycles(changes_of(result)), "restored_s": restored(changes_of(result)),
            "recomputed": sum(change["recomputed"] for change in changes_of(result)),
            # From the wish to more KV in use, which includes the ends of steps that run then.
            "drop_s": [round(grown_s(change) - change["asked_s"], 3) for change in formed],
            "drop_steps": [change["steps_meanwhile"] for change in formed],
            "wanted": groups.get("replicas_wanted", []),
            "_ttft": ttft, "_tpot": tpot, "_rows": done, "_result": result}


def violations(rows):
    """Adds the share of requests beyond each multiple of the best P50 of the systems."""
    for kind in ("ttft", "tpot"):
        best = min(percentile(row[f"_{kind}"], 0.5) for row in rows)
        for row in rows:
            late = lambda scale: mean(v > scale * best for v in row[f"_{kind}"])
            row[f"{kind}_violations"] = {str(scale): late(scale) for scale in SCALES}


def when_late(rows):
    """When those requests arrive whose first tokens are later than the P99 of static pairs, of systems that drop: in the burst
    before a group is asked for, while one forms, while there are groups, or while all replicas are alone."""
    static = next((row for row in rows if row["system"] == "static PP"), None)
    out = {}
    for row in rows:
        formed = [(change["asked_s"], grown_s(change)) for change in changes_of(row["_result"]) if change["together"]]
        if not static or not formed:
            continue
        first, parted = formed[0][0], row["restored_s"] or math.inf
        counts = Counter()
        for at in (r["due_s"] for r in row["_rows"] if r["ttft_ms"] > static["ttft_p99_ms"]):
            counts["queue" if BURST_AT <= at < first else
                   "forming" if any(asked <= at < grown for asked, grown in formed) else
                   "groups" if first <= at < parted else "alone"] += 1
        out[row["system"]] = {"forming_s": formed, **counts}
    return out


def full_at(row, kv, droppable, replicas):
    """The second of the burst from which requests need more KV than the system has at any time of this run, 5 s in a row."""
    changes = changes_of(row["_result"])
    merges = itertools.accumulate((len(change["replicas"]) - 1) * (1 if change["together"] else -1) for change in changes)
    most = kv + max(merges, default=0) * droppable / (replicas // 2)
    demand = demand_of(row["_result"], max(r["due_s"] for r in row["_rows"]))
    beyond = [all(d > most for d in demand[s : s + 5]) for s in range(len(demand) - 5)]
    return next((s - BURST_AT for s in range(BURST_AT, len(beyond)) if beyond[s]), None)


def tokens_between(row, begin, end):
    """Tokens of answers in a stretch of seconds, each answer's as if they came at equal distances."""
    tokens = 0.0
    for r in row["_rows"]:
        first = r["due_s"] + r["ttft_ms"] / 1000
        inside = min(r["end_s"], end) - max(first, begin)
        if inside > 0:
            tokens += r["output_tokens"] * inside / max(1e-9, r["end_s"] - first)
    return tokens


def about_kv(load):
    return (f'{load["requests"]} requests, KV {load["kv_tokens"]} tokens, mean demand {load["mean_demand"]:.2f}, '
            f'peak {load["peak_demand"]:.2f}, pairs can add {load["droppable"]:.2f}')


def public(row):
    return {key: value for key, value in row.items() if not key.startswith("_")}


def shares(row, kind, *scales):
    return ", ".join(f'{100 * row[f"{kind}_violations"][scale]:.1f}' for scale in scales)


def show(title, rows):
    print(title)
    drop = next((row for row in rows if row["system"] == "drop"), None)
    for row in rows:
        ratio = f'{row["ttft_p99_ms"] / drop["ttft_p99_ms"]:6.1f}x' if drop else ""
        print(f'  {row["system"]:29} TTFT P50 {row["ttft_p50_ms"]:.0f} P90 {row["ttft_p90_ms"]:.0f} P99 {row["ttft_p99_ms"]:.0f} '
              f'P99.9 {row["ttft_p999_ms"]:.0f} ms {ratio}  TPOT P50 {row["tpot_p50_ms"]:.1f} P90 {row["tpot_p90_ms"]:.1f} '
              f'P99 {row["tpot_p99_ms"]:.1f} P99.9 {row["tpot_p999_ms"]:.1f} ms  {row["tokens_per_s"]:.0f} tokens/s  '
              f'TTFT beyond 4, 5, 10x {shares(row, "ttft", "4", "5", "10")} %  TPOT beyond 2, 4, 5x {shares(row, "tpot", "2", "4", "5")} %  '
              f'groups {row["groups_formed"]}/{row["groups_parted"]} cycles {row["cycles"]} formed in {row["drop_s"]} s, '
              f'{row["drop_steps"]} steps  recomputed {row["recomputed"]}  exchanged {row["kv_exchanged_gib"]:.1f} GiB  '
              f'bubbles {100 * row["bubbles"]:.1f} %', flush=True)
