"""The training loop: workers share one buffer of weights, each with gradients of its own."""

import json
import math
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass

import numpy
import torch

import data
import model
import optimizer

BARRIER_S = 1800  # a longer wait means that another worker has died
MICRO_BATCH = 1024  # tokens of one forward and backward pass on a CPU, which fit the caches


@dataclass(frozen=True)
class Phase:
    start: int
    steps: int
    layers: int
    window: int
    batch: int  # tokens of a step
    rate: tuple  # multiplies both learning rates, from the phase's first step to its last
    bare: bool  # every other window begins in the middle of a text, without BOS

    def factor(self, step):
        part = (step - self.start + 1) / self.steps
        return self.rate[0] + (self.rate[1] - self.rate[0]) * part


def phases(recipe):
    made, start = [], 0
    for entry in recipe["phases"]:
        if entry["batch"] % data.BLOCK or data.BLOCK % entry["window"]:
            raise SystemExit(f"recipe: a batch is a multiple of {data.BLOCK} tokens, a window a divisor of it; "
                             f"not {entry['batch']} and {entry['window']}")
        made.append(Phase(start, entry["steps"], entry["layers"], entry["window"], entry["batch"],
                          tuple(entry["rate"]), entry.get("bare", False)))
        start += entry["steps"]
    return made


def phase_at(made, step):
    for phase in made:
        if step < phase.start + phase.steps:
            return phase
    return None


class Progress:
    """State that a resumed run needs in addition to the weights and the moments."""

    def __init__(self):
        self.step, self.position, self.tokens, self.layers, self.moments_since = 0, 0, 0, 0, 0

    def apply(self, phase):
        self.step += 1
        self.position += phase.batch // data.BLOCK
        self.tokens += phase.batch


class Shared:
    """Buffers that every worker sees: weights, both moments, one gradient and one loss for each worker."""

    def __init__(self, config, workers, device):
        count = model.parameter_count(config)

        def buffer(*shape, dtype=torch.float32):
            made = torch.zeros(*shape, dtype=dtype, device=device)
            return made.share_memory_() if workers > 1 else made

        self.weights, self.first, self.second = buffer(count), buffer(count), buffer(count)
        self.gradients = [buffer(count) for _ in range(workers)]
        self.losses = buffer(workers, dtype=torch.float64)

    def state(self):
        return self.weights, self.first, self.second


def save(path, shared, progress, recipe):
    """Writes a checkpoint atomically: a reader never sees half of one."""
    half = path.with_suffix(".half")
    torch.save({"weights": shared.weights.cpu(), "first": shared.first.cpu(), "second": shared.second.cpu(),
                "progress": vars(progress), "recipe": recipe}, half)
    with open(half, "rb") as written:
        os.fsync(written.fileno())
    half.replace(path)


def load(path, shared, progress):
    kept = torch.load(path, map_location="cpu")
    for name in ("weights", "first", "second"):
        getattr(shared, name).copy_(kept[name])
    for name, value in kept["progress"].items():
        setattr(progress, name, value)


class Worker:
    """One process's part of each step."""

    def __init__(self, run, rank):
        self.run, self.rank = run, rank
        config = run.config
        leaves = {name: tensor.detach().requires_grad_()
                  for name, tensor in model.views(run.shared.weights, config).items()}
        for name, tensor in model.views(run.shared.gradients[rank], config).items():
            leaves[name].grad = tensor
        self.model = model.Model(config, leaves, run.arithmetic, run.device)
        owned = optimizer.shares(optimizer.parts(config, model.layout(config)), run.workers)[rank]
        self.optimizer = optimizer.Optimizer(owned, run.shared.state(), run.arithmetic)
        self.reader = data.Reader(run.work / "train.bin", run.recipe["seed"])

    def gradients(self, progress, phase):
        shared, rank = self.run.shared, self.rank
        shared.gradients[rank].zero_()
        self.model.layers = phase.layers
        blocks = list(range(progress.position, progress.position + phase.batch // data.BLOCK))
        at_once = max(1, self.run.micro_batch // data.BLOCK)
        total = 0.0
        for start in range(rank * at_once, len(blocks), self.run.workers * at_once):
            inputs, targets = self.reader.windows(blocks[start:start + at_once], phase.window,
                                                  phase.bare)
            loss = self.model.loss(inputs.to(self.run.device), targets.to(self.run.device)) / phase.batch
            loss.backward()
            total += loss.item()
        shared.losses[rank] = total

    def update(self, progress, phase):
        factor = phase.factor(progress.step)
        rates = (self.run.recipe["muon_rate"] * factor, self.run.recipe["adam_rate"] * factor)
        self.optimizer.step(self.run.shared.gradients, phase.layers,
                            progress.step + 1 - progress.moments_since, rates)


class Run:
    """A run from its first step, or from its checkpoint, to the recipe's end or a request to stop."""

    def __init__(self, work, recipe, config, arithmetic, device, workers):
        self.work, self.recipe, self.config, self.arithmetic, self.device = work, recipe, config, arithmetic, device
        self.workers = workers if device == "cpu" else 1
        self.micro_batch = MICRO_BATCH if device == "cpu" else 64 * data.BLOCK
        self.phases = phases(recipe)
        self.shared = Shared(config, self.workers, device)
        self.barrier = multiprocessing.Barrier(self.workers, timeout=BARRIER_S)
        self.stopping = multiprocessing.Value("b", 0)
        self.progress = Progress()

    def begin(self, weights=None):
        """Starts from the checkpoint if there is one, else from the given weights, else from new ones."""
        checkpoint = self.work / "checkpoint.pt"
        if checkpoint.exists():
            load(checkpoint, self.shared, self.progress)
            return
        views = model.views(self.shared.weights, self.config)
        if weights is None:
            generator = torch.Generator().manual_seed(self.recipe["seed"])
            model.initialise(views, self.config, generator)
            known = numpy.load(self.work / "embedding.npy")
            views["embed"].copy_(torch.from_numpy(known) * model.EMBED_LENGTH)
            self.progress.layers = self.phases[0].layers
            return
        for name, tensor in views.items():
            tensor.copy_(weights[name])
        self.progress.layers = self.config.layers

    def train(self, last_step=None, checkpoint_s=240):
        fellows = [multiprocessing.get_context("fork").Process(target=self._fellow, args=(rank, last_step), daemon=True)
                   for rank in range(1, self.workers)]
        for fellow in fellows:
            fellow.start()
        previous = [signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)]
        try:
            self._lead(last_step, checkpoint_s)
        finally:
            for number, handler in zip((signal.SIGTERM, signal.SIGINT), previous):
                signal.signal(number, handler)
        for fellow in fellows:
            fellow.join(timeout=60)

    def _stop(self, *_):
        self.stopping.value = 1

    def _fellow(self, rank, last_step):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for _ in self._steps(Worker(self, rank), last_step):
            pass

    def _steps(self, worker, last_step):
        """Yields (phase, loss) after each step. All workers run this concurrently."""
        while True:
            phase = phase_at(self.phases, self.progress.step)
            self.barrier.wait()  # the decision to stop has been made
            if phase is None or self.stopping.value or self.progress.step == last_step:
                return
            if phase.layers != self.progress.layers:
                self._grow(worker.rank, phase.layers)
            worker.gradients(self.progress, phase)
            self.barrier.wait()
            worker.update(self.progress, phase)
            self.progress.apply(phase)
            loss = float(self.shared.losses.sum())
            if not math.isfinite(loss):
                raise SystemExit(f"the loss of step {self.progress.step} is {loss}: lower muon_rate and adam_rate")
            self.barrier.wait()
            yield phase, loss

    def _grow(self, rank, layers):
        """Resets the moments, which do not fit the new layers."""
        if rank == 0:
            model.grow(model.views(self.shared.weights, self.config), self.progress.layers, layers)
            self.shared.first.zero_()
            self.shared.second.zero_()
        self.progress.layers = layers
        self.progress.moments_since = self.progress.step
        self.barrier.wait()

    def _lead(self, last_step, checkpoint_s):
        worker = Worker(self, 0)
        with open(self.work / "log.jsonl", "a", encoding="utf-8", buffering=1) as log:
            saved = begun = time.monotonic()
            for phase, loss in self._steps(worker, last_step):
                now = time.monotonic()
                log.write(json.dumps(self._line(phase, loss, now - begun, worker)) + "\n")
                begun = now
                if now - saved > checkpoint_s:
                    save(self.work / "checkpoint.pt", self.shared, self.progress, self.recipe)
                    saved = now
        save(self.work / "checkpoint.pt", self.shared, self.progress, self.recipe)

    def _line(self, phase, loss, seconds, worker):
        step = self.progress.step
        line = {"step": step, "tokens": self.progress.tokens, "loss": round(loss, 5), "layers": phase.layers,
                "window": phase.window, "rate": round(phase.factor(step - 1), 4), "seconds": round(seconds, 2)}
        if step % self.recipe["held_out_every"] == 0:
            line["held_out"] = round(held_out(worker.model, self.work, phase.window, self.device), 4)
        return line


@torch.no_grad()
def held_out(decoder, work, window, device):
    """Bits per byte of the beginnings of the held-out books, in windows of their own; `evaluate` scores them whole."""
    facts = json.loads((work / "held_out.json").read_text())
    ids = numpy.fromfile(work / "held_out.bin", dtype="<u2").astype(numpy.int64)
    rows = torch.from_numpy(ids).view(-1, window)
    at_once = max(1, MICRO_BATCH // window)
    nats = sum(float(decoder.loss(data.with_bos(part).to(device), part.to(device)))
               for part in rows.split(at_once))
    return nats / math.log(2) / facts["bytes"]
