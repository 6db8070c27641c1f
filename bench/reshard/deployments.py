"""Deployments of Qwen2.5-32B on 8 H20 as AMOEBA compares them, in simulation by `protean simulate`.

The profile is calibrated on the paper's Table 1 and on nothing else. Its context limits are taken
as the longest request that 1, 2 and 4 devices serve. Its throughputs are output tokens per second
of 1K prompts at the highest rate with a P99 TTFT under 10 s and a median TPOT under 100 ms; from each
follows a factor of step times."""

import json
import math
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

MODEL = "qwen2.5-32b"
LIMITS = [3840, 42240, 123392]  # Table 1: 3.75K, 41.25K, 120.5K tokens
RATES = [448, 670, 767]  # Table 1: output tokens/s of an instance
TTFT_MS, TPOT_MS = 10_000, 100  # the paper's SLO
SHORT, LONG = 1024, 51_200  # tokens of prompts
DEVICES = 8
MEMORY = "77GiB"  # 96 GB less 14.3 GB of activations (section 2.3)
# With sequence parallelism each device keeps all weights, so devices add up what one can hold.
SEQUENCE_LIMITS = [devices * LIMITS[0] for devices in (1, 2, 4, 8)]


def add_options(parser):
    parser.add_argument("--binary", default="build/protean")
    parser.add_argument("--answer", type=int, default=512, help="tokens of each answer")
    parser.add_argument("--long", type=int, default=LONG, help="tokens of a long prompt")
    parser.add_argument("--seconds", type=float, default=900, help="of arrivals")
    parser.add_argument("--warm", type=float, default=180, help="seconds that are not counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slowdown", default="", help="factors found before, such as 1.2,1.5,2.3: do not calibrate")
    parser.add_argument("--only", default="", help="deployments, such as amoeba,round-robin")


class Simulator:
    def __init__(self, options, folder):
        self.binary, self.folder, self.answer = options.binary, folder, options.answer
        self.slowdown = [1.0, 1.0, 1.0]
        if options.slowdown:
            self.slowdown = [float(factor) for factor in options.slowdown.split(",")]
        else:
            self.calibrate()

    def cluster(self, devices, slowdown=None, limits=LIMITS, sequence=False):
        text = (f'profile = "H20"\ndevices = {devices}\nmemory = "{MEMORY}"\n'
                f"slowdown = {list(slowdown or self.slowdown)}\n" + (f"longest = {limits}\n" if limits else "")
                + ("sequence = true\n" if sequence else ""))
        path = os.path.join(self.folder, f"cluster{abs(hash(text))}.toml")
        if not os.path.exists(path):
            with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as file:
                file.write(text)
            os.replace(file.name, path)  # another thread may read it
        return path

    def run(self, cluster, *flags):
        asked = subprocess.run([self.binary, "simulate", "--like", MODEL, "--cluster", cluster, "--json", "--morph-precisions", "w8", "--max-num-seqs", "256",
                                "--migrate", "off", "--max-num-queued-reqs", "100000", "--no-enable-prefix-caching", *flags],
                               capture_output=True, text=True)
        if asked.returncode != 0:
            raise SystemExit(asked.stderr)
        return json.loads(asked.stdout)

    def rate_of(self, tensor, slowdown):
        """The output tokens/s of one instance at the highest rate of arrivals that keeps the SLO."""
        cluster = self.cluster(tensor, [slowdown] * 3, None)
        low, high = 0.01, 20.0  # requests/s
        for _ in range(12):
            rate = math.sqrt(low * high)
            result = self.run(cluster, "--tensor-parallel-size", str(tensor), "--request-rate", f"{rate:.5f}",
                              "--num-prompts", "400", "--random-input-len", str(SHORT), "--random-output-len",
                              str(self.answer), "--no-records")
            keeps = result["p99_ttft_ms"] < TTFT_MS and result["median_tpot_ms"] < TPOT_MS
            low, high = (rate, high) if keeps else (low, rate)
        return low * self.answer

    def calibrate(self):
        def factor(power):
            low, high = 0.25, 8.0  # of step times; the rate falls with it
            for _ in range(10):
                middle = math.sqrt(low * high)
                low, high = (middle, high) if self.rate_of(1 << power, middle) > RATES[power] else (low, middle)
            return math.sqrt(low * high)

        with ThreadPoolExecutor(2) as pool:
            self.slowdown = [round(f, 4) for f in pool.map(factor, range(3))]

    def context_by_memory(self, tensor):
        """What our own memory model would hold on so many devices, in tokens."""
        result = self.run(self.cluster(tensor, None, None), "--tensor-parallel-size", str(tensor), "--num-prompts", "1",
                          "--random-input-len", "16", "--random-output-len", "2")
        note = next(n for n in result["notes"] if "begins with" in n)
        blocks = int(note.split(" blocks of")[0].split()[-1])
        return 16 * blocks

    def table1(self):
        """Prints Table 1 next to what the calibrated simulation gives, and returns it."""
        rows = [{"tensor": 1 << power, "paper_context": LIMITS[power], "paper_tokens_per_s": RATES[power],
                 "slowdown": self.slowdown[power], "tokens_per_s": self.rate_of(1 << power, self.slowdown[power]),
                 "context_by_memory": self.context_by_memory(1 << power)} for power in range(3)]
        for row in rows:
            print(f"TP{row['tensor']}: paper {row['paper_context']} tokens and {row['paper_tokens_per_s']} tokens/s; "
                  f"steps x {row['slowdown']:g} give {row['tokens_per_s']:.0f} tokens/s; our memory model "
                  f"{row['context_by_memory']} tokens", flush=True)
        return rows


class Part:
    """Some devices of a deployment, and the requests that they get: those of more than `over` tokens and at most `most`."""

    def __init__(self, devices, flags, most, over=0, sequence=False):
        self.devices, self.flags, self.most, self.over, self.sequence = devices, flags, most, over, sequence

    def takes(self, prompt, answer):
        return self.over < prompt + answer <= self.most

    def run(self, simulator, trace):
        limits = SEQUENCE_LIMITS if self.sequence else LIMITS
        return simulator.run(simulator.cluster(self.devices, limits=limits, sequence=self.sequence), "--trace", trace,
                             "--max-model-len", str(self.most), *self.flags)


def static(tensor, pipeline=1):
    devices = tensor * pipeline
    return [Part(DEVICES, ["--tensor-parallel-size", str(tensor), "--pipeline-parallel-size", str(pipeline), "--data-parallel-size",
                           str(DEVICES // devices), "--max-tensor-parallel-size", "4", "--router", "least-loaded"],
                 LIMITS[int(math.log2(devices))])]


def scaled(scale, router="least-loaded", sequence=False):
    limits, widest = (SEQUENCE_LIMITS, 8) if sequence else (LIMITS, 4)
    return [Part(DEVICES, ["--data-parallel-size", str(DEVICES), "--max-tensor-parallel-size", str(widest), "--scale", scale, "--router",
                           router], limits[-1], sequence=sequence)]


DEPLOYMENTS = {
    "amoeba": scaled("paper"),
    "round-robin": scaled("neighbours", "round-robin"),
    "least-load-first": scaled("neighbours"),
    "groups by layers": scaled("layers"),  # KunServe
    "sequence parallel": scaled("paper", sequence=True),  # LoongServe
    "8 x TP1": static(1), "4 x TP2": static(2), "2 x TP4": static(4),
    "TP4 + 4 x TP1": [Part(4, ["--tensor-parallel-size", "4"], LIMITS[2], over=LIMITS[0]),
                      Part(4, ["--data-parallel-size", "4", "--router", "least-loaded"], LIMITS[0])],
    "2 x (TP1 x PP4)": static(1, 4),
}


def write_trace(path, rows):
    """Writes (seconds, prompt tokens, answer tokens) as a trace that `protean simulate` reads."""
    with open(path, "w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for at, prompt, answer in rows:
            file.write(f"2026-01-01 {int(at) // 3600:02}:{int(at) // 60 % 60:02}:{at % 60:010.7f},{prompt},{answer}\n")


def run(simulator, parts, rows, name):
    """Returns the results of the parts of a deployment, and how many short and long requests none of them takes."""
    results, refused = [], [row for row in rows if not any(part.takes(*row[1:]) for part in parts)]
    for i, part in enumerate(parts):
        some = [row for row in rows if part.takes(*row[1:])]
        if not some:
            continue
        path = os.path.join(simulator.folder, f"{name.replace(' ', '')}-{i}.csv")
        write_trace(path, some)
        # `due_s` counts from the first request of the part, not from the begin of the load.
        result = part.run(simulator, path)
        for record in result["requests"]:
            record["due_s"] += some[0][0]
        results.append(result)
    return results, refused


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def measured(results, refused, options):
    """What a deployment served after the warm-up. Refused requests count as outside of the SLO."""
    warm, long = options.warm, options.long
    done = [row for result in results for row in result["requests"] if row["outcome"] == "completed"]
    slot = 10  # seconds of a sample
    samples = [0.0] * int((options.seconds - warm) / slot)
    for row in done:  # tokens come evenly from the first to the last
        first, last = row["due_s"] + row["ttft_ms"] / 1000, row["due_s"] + row["last_token_ms"] / 1000
        for i in range(max(0, int((first - warm) / slot)), min(len(samples), int((last - warm) / slot) + 1)):
            begin, end = warm + i * slot, warm + (i + 1) * slot
            overlap = max(0.0, min(last, end) - max(first, begin))
            samples[i] += row["output_tokens"] * overlap / max(1e-9, last - first) / slot
    due = [row for row in done if row["due_s"] >= warm]
    shorts, longs = ([row for row in due if (row["input_tokens"] >= long) == is_long] for is_long in (False, True))
    failed = [(row["due_s"], row["input_tokens"]) for result in results for row in result["requests"] if row["outcome"] != "completed"]
    lost = [row for row in [(at, prompt) for at, prompt, _ in refused] + failed if row[0] >= warm]
    lost_shorts = sum(prompt < long for _, prompt in lost)
    within = sum(row["ttft_ms"] < TTFT_MS and row["tpot_ms"] < TPOT_MS for row in shorts)
    groups = [result["groups"] for result in results if "groups" in result]
    return {"tokens_per_s": sum(samples) / len(samples),
            "tokens_per_s_p10_p50_p90": [percentile(samples, share) for share in (0.1, 0.5, 0.9)],
            "served": len(done), "short_refused": lost_shorts, "long_served": len(longs), "long_refused": len(lost) - lost_shorts,
            "ttft_p50_ms": percentile([row["ttft_ms"] for row in due], 0.5), "ttft_p99_ms": percentile([row["ttft_ms"] for row in due], 0.99),
            "ttft_short_p50_ms": percentile([row["ttft_ms"] for row in shorts], 0.5),
            "ttft_short_p99_ms": percentile([row["ttft_ms"] for row in shorts], 0.99),
            "ttft_long_p50_ms": percentile([row["ttft_ms"] for row in longs], 0.5),
            "tpot_p50_ms": percentile([row["tpot_ms"] for row in due], 0.5), "tpot_p99_ms": percentile([row["tpot_ms"] for row in due], 0.99),
            "short_in_slo": within / max(1, len(shorts) + lost_shorts),
            "groups_formed": sum(g.get("together", 0) for g in groups)}


def shown(row):
    ms = lambda key: "-" if row[key] is None else f"{row[key]:.0f}"
    return (f"{row['tokens_per_s']:7.0f} tokens/s  TTFT P50 {ms('ttft_p50_ms')} P99 {ms('ttft_p99_ms')} long {ms('ttft_long_p50_ms')}  "
            f"TPOT P50 {ms('tpot_p50_ms')} P99 {ms('tpot_p99_ms')} ms  short in SLO {100 * row['short_in_slo']:.1f} %  "
            f"refused {row['short_refused']} short, {row['long_refused']} long of {row['long_served'] + row['long_refused']}  "
            f"groups {row['groups_formed']}")


def chosen(options):
    wanted = [name for name in options.only.split(",") if name]
    return [(name, parts) for name, parts in DEPLOYMENTS.items() if not wanted or name in wanted]


def say_sequence(options):
    needed = options.long + options.answer
    print(f"sequence parallelism keeps all weights on each device: 8 devices hold {SEQUENCE_LIMITS[-1]} tokens by Table 1, a long request has "
          f"{needed}" + ("" if needed <= SEQUENCE_LIMITS[-1] else " and is refused"), flush=True)
