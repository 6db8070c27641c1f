#!/usr/bin/env python3
"""Measures steps of decoder layers on an NVIDIA GPU and compares them with the roofline of a built-in profile.

Needs PyTorch with CUDA, and Triton; gpu_layer.py computes with them. Weights, KV and hidden states are random and in
bf16. One layer at a time is measured, as a CUDA graph of several copies of it; its weights are larger than the L2
cache. A step is the embedding matrix, all layers at the time of the measured one, and the LM head. All-reduces are
neither measured nor predicted. Each sequence has its KV in one piece, not in pages.

Attention is the fastest of several implementations that agree with each other:

  flash          F.scaled_dot_product_attention's flash backend with GQA
  flash-rows     the same in decoding, with the queries that share a head of KV as rows of one head
  cudnn          the cuDNN backend of F.scaled_dot_product_attention
  cudnn-merged   for a chunk, cuDNN over earlier KV and cuDNN over the chunk, whose results are merged
  split-T-S      a Triton kernel for decoding that splits KV into S parts, read in tiles of T positions

The prediction for one layer on one of T devices, as roofline_cost() and predict_us() in src/cost make it:

  matrices   max(bytes / weight_bytes_per_us, tokens * 2 * weights / operations_per_us)
  others     layer_us + token_element_us * hidden * tokens
  attention  (4 * heads * head_dim * positions seen / operations_per_us + bytes of KV / kv_bytes_per_us) / T

and for the LM head bytes / weight_bytes_per_us + rows * 2 * weights / operations_per_us."""

import argparse
import json
import math
import re
import subprocess
import time
from pathlib import Path
from statistics import mean, median

DIM = 128  # of a head, in all models
MODELS = {  # a device has heads, kv_heads, ffn and vocab divided by tensor
    "qwen2.5-14b": {"layers": 48, "hidden": 5120, "ffn": 13824, "heads": 40, "kv_heads": 8, "vocab": 152064,
                    "bias": True, "tensor": 1},
    "qwen2.5-72b": {"layers": 80, "hidden": 8192, "ffn": 29568, "heads": 64, "kv_heads": 8, "vocab": 152064,
                    "bias": True, "tensor": 4},
    "llama-2-7b": {"layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "kv_heads": 32, "vocab": 32000,
                   "bias": False, "tensor": 1},
}
KV_TILE = 64  # kKvTileTokens
PREFILLS = [(tokens, 0) for tokens in (128, 512, 1024, 2048, 4096, 8192)]
CHUNKS = [(tokens, before) for tokens in (512, 2048) for before in (4096, 16384)]
DECODES = [(sequences, length) for length in (512, 2048, 8192) for sequences in (1, 8, 32, 64, 128)]


def read_profile(file, name):
    """Returns the numbers of a built-in profile."""
    text = file.read_text()
    body = text[text.index(f'.name = "{name}"'):]
    number = r"= ([\d.e]+)(?: / (\d+))?,"
    found = {}
    for key in ("weight_bytes_per_us", "kv_bytes_per_us", "operations_per_us", "layer_us", "token_element_us"):
        value, divisor = re.search(rf"\.{key} {number}", body).groups()
        found[key] = float(value) / float(divisor or 1)
    return found


def work_of(sequences, tokens, before):
    """Returns positions that rows see, and positions of KV read, for sequences that each add so many tokens."""
    seen = sequences * (tokens * before + tokens * (tokens + 1) / 2)
    return seen, sequences * math.ceil((before + tokens) / KV_TILE) * KV_TILE


def layer_weights(model):
    attention = model["hidden"] * 2 * DIM * (model["heads"] + model["kv_heads"])
    return (attention + 3 * model["hidden"] * model["ffn"]) / model["tensor"]


def predict(profile, model, sequences, tokens, before):
    """Returns the predicted microseconds of the parts of a layer, and of the LM head."""
    rows = sequences * tokens
    weights = layer_weights(model)
    read, row = 2 * weights / profile["weight_bytes_per_us"], 2 * weights / profile["operations_per_us"]
    seen, kv = work_of(sequences, tokens, before)
    head = model["vocab"] * model["hidden"] / model["tensor"]
    return {
        "matrices": read + row * max(0, rows - max(1, read / row)),
        "others": profile["layer_us"] + profile["token_element_us"] * model["hidden"] * rows,
        "attention": (4 * model["heads"] * DIM * seen / profile["operations_per_us"] +
                      4 * model["kv_heads"] * DIM * kv / profile["kv_bytes_per_us"]) / model["tensor"],
        "head": 2 * head / profile["weight_bytes_per_us"] + sequences * 2 * head / profile["operations_per_us"],
    }


def measure(args, profile):
    began = time.monotonic()
    import torch  # printing tables needs no GPU

    from gpu_layer import Bench, ceilings, free_memory
    query = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    smi = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "profile": profile,
              "smi": [subprocess.run(smi, capture_output=True, text=True).stdout.strip()], "models": {}}
    result["ceilings"] = ceilings()
    free_memory()
    print(result, flush=True)
    steps = []
    if args.steps != "decode":
        steps += [(1, *one) for one in PREFILLS + CHUNKS]
    if args.steps != "prefill":
        steps += [(count, 1, length - 1) for count, length in DECODES]
    for name in args.models.split(","):
        model = MODELS[name]
        bench = Bench(model, max(sequences * (tokens + before) for sequences, tokens, before in steps))
        of = result["models"][name] = {"check": bench.check(), "steps": []}
        free_memory()
        print(f"{time.monotonic() - began:.0f} s", name, of["check"], flush=True)
        for sequences, tokens, before in steps:
            if time.monotonic() - began > args.seconds:
                print("out of time")
                break
            predicted = predict(profile, model, sequences, tokens, before)
            step = bench.step(sequences, tokens, before, predicted["matrices"] + predicted["others"])
            of["steps"].append({"sequences": sequences, "tokens": tokens, "before": before} | step)
        free_memory()
        of |= bench.ends(sorted({sequences * tokens for sequences, tokens, _ in steps}),
                         sorted({sequences for sequences, _, _ in steps}))
        print(f"{time.monotonic() - began:.0f} s", flush=True)
        if args.whole == name and time.monotonic() - began < args.seconds:
            bench.cache = None
            free_memory()
            of["whole"] = []
            for case in {(32, 1, 2047), (1, 2048, 0)} & set(steps):
                best = next(one["attention"] for one in of["steps"]
                            if (one["sequences"], one["tokens"], one["before"]) == case)
                of["whole"].append({"case": case, "layers_us": bench.whole(*case, best)})
                free_memory()
        del bench
        free_memory()
        result["smi"].append(subprocess.run(smi, capture_output=True, text=True).stdout.strip())
        args.json.write_text(json.dumps(result))
    result["seconds"] = time.monotonic() - began
    args.json.write_text(json.dumps(result))
    return result


def kind_of(step):
    if step["tokens"] == 1:
        return f"decode, KV of {step['before'] + 1}"
    if step["before"] > 0:
        return "chunk after KV"
    return f"prefill of {'up to 512' if step['tokens'] <= 512 else '1,024 or more'}"


def compare(result, profile):
    """Yields a line for each step: times measured and predicted, of its parts and of the whole step."""
    for name, of in result["models"].items():
        model = MODELS[name]
        for step in of["steps"]:
            predicted = predict(profile, model, step["sequences"], step["tokens"], step["before"])
            rows = str(step["sequences"] * step["tokens"])
            ends = {part: {str(key): us for key, us in of[f"{part}_us"].items()} for part in ("embedding", "head")}
            measured = {part: step[f"{part}_us"] for part in ("matrices", "others", "attention")}
            measured["head"] = ends["head"][str(step["sequences"])]
            yield {
                "model": name, "kind": kind_of(step), "step": step, "measured": measured, "predicted": predicted,
                "measured_us": model["layers"] * step["layer_us"] + measured["head"] + ends["embedding"][rows],
                "predicted_us": model["layers"] * sum(predicted[part] for part in ("matrices", "others", "attention"))
                + predicted["head"],
            }


def print_tables(result, profile):
    lines = list(compare(result, profile))
    print("\n| model | step | attention | layer us | matrices, others, attention us | predicted | step ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    parts = ("matrices", "others", "attention")
    for line in lines:
        step = line["step"]
        measured, predicted = (", ".join(f"{line[which][part]:.1f}" for part in parts)
                               for which in ("measured", "predicted"))
        name = f"{step['sequences']} x {step['tokens']} after {step['before']}"
        print(f"| {line['model']} | {name} | {step['attention']} "
              f"| {step['layer_us']:.1f} | {measured} | {predicted} "
              f"| {line['measured_us'] / 1000:.2f} | {line['predicted_us'] / line['measured_us']:.2f} |")
    kinds = list(dict.fromkeys(line["kind"] for line in lines))
    models = list(result["models"])
    print(f"\n| predicted / measured: mean, range | {' | '.join(models)} | all: mean, worst error |")
    print("| --- " * (len(models) + 2) + "|")

    def cells(chosen, ratio):
        of_models = []
        for model in models:
            ratios = [ratio(line) for line in chosen if line["model"] == model]
            of_models.append(f"{mean(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}" if ratios else "-")
        ratios = [ratio(line) for line in chosen]
        worst = max(ratios, key=lambda one: abs(one - 1))
        return f"{' | '.join(of_models)} | {mean(ratios):.2f}, {100 * (worst - 1):+.0f} %"

    for kind in kinds:
        chosen = [line for line in lines if line["kind"] == kind]
        print(f"| step: {kind} | {cells(chosen, lambda line: line['predicted_us'] / line['measured_us'])} |")
    for part in (*parts, "head"):
        for kind in kinds:
            chosen = [line for line in lines if line["kind"] == kind and line["measured"][part] > 0]
            if chosen:
                ratios = cells(chosen, lambda line: line["predicted"][part] / line["measured"][part])
                print(f"| {part}: {kind} | {ratios} |")
    print("\n| model | step | weights GB/s | matrices T/s | others us | KV GB/s | attention T/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for line in lines:
        model, step, us = MODELS[line["model"]], line["step"], line["measured"]
        rows = step["sequences"] * step["tokens"]
        seen, kv = work_of(step["sequences"], step["tokens"], step["before"])
        attention_us = max(us["attention"], 1e-3) * model["tensor"]
        print(f"| {line['model']} | {step['sequences']} x {step['tokens']} after {step['before']} "
              f"| {2 * layer_weights(model) / us['matrices'] / 1e3:.0f} "
              f"| {2 * rows * layer_weights(model) / us['matrices'] / 1e6:.0f} | {us['others']:.1f} "
              f"| {4 * model['kv_heads'] * DIM * kv / attention_us / 1e3:.0f} "
              f"| {4 * model['heads'] * DIM * seen / attention_us / 1e6:.0f} |")
    for name, of in result["models"].items():
        for whole in of.get("whole", []):
            step = next(step for step in of["steps"]
                        if [step["sequences"], step["tokens"], step["before"]] == list(whole["case"]))
            print(f"{name} {whole['case']}: all layers take {whole['layers_us']:.0f} us, "
                  f"{whole['layers_us'] / MODELS[name]['layers'] / step['layer_us']:.3f} of what one layer says")


def joined(files):
    """Returns the results of several runs as one."""
    first, *others = [json.loads(file.read_text()) for file in files]
    for other in others:
        for name, of in other["models"].items():
            mine = first["models"].setdefault(name, {"steps": []})
            for key in ("steps", "whole"):
                mine[key] = mine.get(key, []) + of.get(key, [])
            for key in ("embedding_us", "head_us"):
                mine[key] = of[key] | mine.get(key, {})
    return first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, help="the source of the built-in profiles",
                        default=Path(__file__).resolve().parents[2] / "src/cost/device_profile.cc")
    parser.add_argument("--profile", default="H100")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", choices=("all", "prefill", "decode"), default="all")
    parser.add_argument("--whole", default="qwen2.5-14b", help="the model of which all layers are measured together")
    parser.add_argument("--seconds", type=float, default=600, help="no step is begun after so long")
    parser.add_argument("--json", type=Path, default=Path("gpu_steps.json"), help="where results are written")
    parser.add_argument("--print", type=Path, nargs="+", metavar="JSON", help="only print tables of earlier results")
    args = parser.parse_args()
    profile = read_profile(args.profiles, args.profile)
    result = joined(args.print) if args.print else measure(args, profile)
    print_tables(result, profile)


if __name__ == "__main__":
    main()
