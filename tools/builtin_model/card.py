"""Writes the model card: the training, the loss curve as a picture, and samples."""

import json
import pathlib

import corpus
import evaluate
import model
import tokenizer

BAR_CPU, BAR_GPU = 1.60, 1.35  # bits per byte on the held-out books

PROMPTS = (
    "Once upon a time, there was a little girl who lived near the sea.",
    "It was a dark and stormy night, and the captain",
    "\"My dear Watson,\" said Holmes,",
    "The old house at the end of the lane had been empty for many years.",
)
QUESTION = [corpus.Turn("user", "Tell me a story about a little dog named Max.")]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 380, 56, 24, 56, 44


def read_log(path):
    """Returns one entry for each step: the last one, if a resumed run repeated the step."""
    entries = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        entries[entry["step"]] = entry
    return [entries[step] for step in sorted(entries)]


def loss_csv(log):
    """Returns each of the first 200 steps, then the mean of every ten."""
    lines = ["step,tokens,layers,window,loss,held_out_bits_per_byte"]
    group = []
    for entry in log:
        group.append(entry)
        if entry["step"] <= 200 or entry["step"] % 10 == 0 or entry is log[-1]:
            loss = sum(e["loss"] for e in group) / len(group)
            seen = [e["held_out"] for e in group if "held_out" in e]
            lines.append(f"{entry['step']},{entry['tokens']},{entry['layers']},{entry['window']},{loss:.4f},"
                         f"{seen[-1] if seen else ''}")
            group = []
    return "\n".join(lines) + "\n"


def totals(csv_path):
    """Returns the steps and tokens that a model was trained for, according to its loss.csv."""
    last = csv_path.read_text(encoding="utf-8").splitlines()[-1].split(",")
    return {"steps": int(last[0]), "tokens": int(last[1])}


def differences(log, csv, steps):
    """Returns |loss - the card's loss| for each of the first steps that both have."""
    theirs = {}
    for line in csv.splitlines()[1:]:
        fields = line.split(",")
        theirs[int(fields[0])] = float(fields[4])
    return [abs(e["loss"] - theirs[e["step"]]) for e in log if e["step"] <= min(steps, 200) and e["step"] in theirs]


def _smooth(log, points=120):
    size = max(1, len(log) // points)
    groups = [log[i:i + size] for i in range(0, len(log), size)]
    return [(group[-1]["tokens"], sum(e["loss"] for e in group) / len(group)) for group in groups]


def picture(log):
    """The loss curve as SVG: training loss on the left axis, held-out bits per byte as dots on the right one."""
    curve = _smooth(log)
    dots = [(e["tokens"], e["held_out"]) for e in log if "held_out" in e]
    end = log[-1]["tokens"]
    low, high = min(v for _, v in curve) - 0.1, max(v for _, v in curve)
    bits_low, bits_high = (min(v for _, v in dots) - 0.05, max(v for _, v in dots) + 0.05) if dots else (0, 1)

    def x(tokens):
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / end

    def y(value, bottom, top):
        return TOP + (HEIGHT - TOP - BOTTOM) * (top - value) / (top - bottom)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="12" fill="#333"><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for i in range(6):
        value, bits, tokens = low + (high - low) * i / 5, bits_low + (bits_high - bits_low) * i / 5, end * i / 5
        level = y(value, low, high)
        parts.append(f'<path d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{value:.2f}</text>'
                     f'<text x="{x(tokens):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                     f'{tokens / 1e6:.2f} M</text>')
        if dots:
            parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{level + 4:.1f}" fill="#b2182b">{bits:.2f}</text>')
    for before, after in zip(log, log[1:]):
        if before["layers"] != after["layers"]:
            at = x(before["tokens"])
            parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#999" stroke-dasharray="4"/>'
                         f'<text x="{at + 4:.1f}" y="{TOP + 12}">{after["layers"]} layers</text>')
    line = " ".join(f"{x(t):.1f},{y(v, low, high):.1f}" for t, v in curve)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#2166ac" stroke-width="1.5"/>')
    parts += [f'<circle cx="{x(t):.1f}" cy="{y(v, bits_low, bits_high):.1f}" r="3" fill="#b2182b"/>' for t, v in dots]
    parts.append(f'<text x="{LEFT}" y="14" fill="#2166ac">training loss, nats per token</text>'
                 f'<text x="{WIDTH - RIGHT}" y="14" text-anchor="end" fill="#b2182b">'
                 f'held-out books (excerpts), bits per byte</text>'
                 f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">training tokens</text></svg>')
    return "\n".join(parts) + "\n"


def _quoted(text):
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def continuations(decoder, encoder, count=80):
    """Markdown: each prompt with its greedy and its sampled continuation."""
    asked = [(prompt, [tokenizer.BOS, *encoder.encode(prompt)]) for prompt in PROMPTS]
    asked.append(("(chat) " + QUESTION[0].text, encoder.encode_dialogue(QUESTION) + [tokenizer.ASSISTANT]))
    made = []
    for prompt, ids in asked:
        made.append(f"**{prompt}**\n")
        for name, temperature in (("greedy", 0.0), ("temperature 0.8, top-p 0.95, seed 1", 0.8)):
            text = encoder.decode(evaluate.write_on(decoder, ids, count, temperature, seed=1))
            made.append(f"*{name}:*\n\n{_quoted(text)}\n")
    return "\n".join(made)


def phases_table(log):
    """Returns a row for each run of steps with the same layers, window and batch."""
    rows, begun = [], 0
    for i, entry in enumerate(log):
        following = log[i + 1] if i + 1 < len(log) else None
        batch = entry["tokens"] - (log[i - 1]["tokens"] if i else 0)
        same = following and (following["layers"], following["window"], following["tokens"] - entry["tokens"]) == \
            (entry["layers"], entry["window"], batch)
        if not same:
            part = log[begun:i + 1]
            mean = sum(e["loss"] for e in part[-20:]) / len(part[-20:])
            rows.append(f"| {part[0]['step']} to {entry['step']} | {entry['layers']} | {entry['window']} | {batch:,} | "
                        f"{part[0]['rate']:g}, {max(e['rate'] for e in part):g}, {entry['rate']:g} | {mean:.3f} |")
            begun = i + 1
    head = ("| steps | layers | window | tokens of a step | learning rate: first, highest, last | loss at the end |\n"
            "| --- | --- | --- | --- | --- | --- |")
    return head + "\n" + "\n".join(rows)


def _scores_table(scores):
    lines = ["| text | tokens | nats per token | bits per byte |", "| --- | --- | --- | --- |"]
    for name, score in scores.items():
        shown = name.removesuffix(".md").replace("--", ": ").replace("_", " ")
        lines.append(f"| {shown} | {score['tokens']:,} | {score['nats_per_token']:.4f} | {score['bits_per_byte']:.4f} |")
    return "\n".join(lines)


def _verdict(bits):
    if bits <= BAR_GPU:
        return f"That is within {BAR_GPU:.2f} on the held-out books, which was hoped for after training on a GPU."
    if bits <= BAR_CPU:
        return f"That is within {BAR_CPU:.2f} on the held-out books, which was hoped for after training on a CPU."
    return (f"**This is an early checkpoint.** {BAR_CPU:.2f} bits per byte on the held-out books is what training on a "
            f"CPU is to reach; this one stands at {bits:.2f} and had too few tokens. Below is how to go on.")


def _amount(log, facts):
    tokens, before = log[-1]["tokens"], facts["before"]
    text = f"{tokens:,} in {log[-1]['step']:,} steps ({tokens / facts['tokens']:.2f} epochs)"
    if before["tokens"]:
        text += f", after {before['tokens']:,} in {before['steps']:,} steps that the curve below does not show"
    return text


def card(log, facts, scores, samples, hardware):
    """README.md of the model directory."""
    books = scores["held-out books together"]
    template = pathlib.Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    return template.format(
        parameters=model.parameter_count(model.Config()), hardware=hardware, training=_amount(log, facts),
        phases=phases_table(log),
        hours=sum(entry["seconds"] for entry in log) / 3600, bytes_per_token=books["bytes"] / books["tokens"],
        scores=_scores_table(scores), verdict=_verdict(books["bits_per_byte"]), continuations=samples)
