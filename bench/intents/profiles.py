#!/usr/bin/env python3
"""Computes the rates of cost/device_profile.cc from Vidur's profiles (github.com/microsoft/vidur,
data/profiling), which lie in PROTEAN_DATA/vidur or in ../shared/data/vidur."""

import csv
import os
from pathlib import Path
from statistics import median

DATA = Path(os.environ.get("PROTEAN_DATA", Path(__file__).parents[2] / "../shared/data")) / "vidur"
HIDDEN, FFN, KV = 8192, 28672, 1024  # of Llama-2-70B
MATRICES = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
OTHERS = {"input_layernorm": 1, "post_attention_layernorm": 1, "attn_rope": 1, "mlp_act": 1, "add": 2}


def rows(name):
    with open(DATA / name, newline="") as file:
        return list(csv.DictReader(file))


def layer(device):
    """Prints what one layer of Llama-2-70B takes on one device."""
    table = rows(f"{device}_meta-llama_Llama-2-70b-hf_mlp.csv")

    def us(tokens, kernels):
        def one(kernel):
            return 1000 * median(float(row[f"time_stats.{kernel}.median"]) for row in table
                                 if row["num_tokens"] == str(tokens) and row["num_tensor_parallel_workers"] == "1")
        return sum(times * one(kernel) for kernel, times in kernels.items())

    weights = 3 * HIDDEN * FFN + HIDDEN * (2 * HIDDEN + 2 * KV)
    matrices = dict.fromkeys(MATRICES, 1)
    print(f"{device}: reads {2 * weights / us(1, matrices) / 1000:.0f} GB/s, multiplies "
          f"{2 * weights * 4096 / us(4096, matrices) / 1e6:.0f} T/s, other kernels {us(1, OTHERS):.0f} us "
          f"and {us(4096, OTHERS) / 4096:.3f} us a token")


def network(name, operation):
    """Prints the time of small messages and the rate of large ones, by the number of devices."""
    table = rows(name)
    for group in sorted({(int(row["num_workers"]), int(row["devices_per_node"])) for row in table}):
        timed = [(int(row["size"]), 1000 * float(row[f"time_stats.{operation}.median"])) for row in table
                 if (int(row["num_workers"]), int(row["devices_per_node"])) == group]
        small = median(us for size, us in timed if size <= 65536)
        print(f"{name}: {group[0]} devices, {group[1]} a node: "
              f"{median(us for size, us in timed if size <= 200_000):.0f} us, "
              f"{median(size / (us - small) for size, us in timed if 3e7 < size < 7e7) / 1000:.0f} GB/s")


for one in ("a100", "h100", "a40"):
    layer(one)
for one in ("a100_dgx", "a100_pairwise_nvlink", "h100_dgx"):
    network(f"network_{one}_all_reduce.csv", "all_reduce")
for one in ("a100_dgx", "a40_pairwise_nvlink", "h100_dgx"):
    network(f"network_{one}_send_recv.csv", "send_recv")
