"""python3 tools/builtin_model COMMAND: trains the model that Protean ships. README.md says how."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one worker process for each core instead

import argparse  # noqa: E402
import json  # noqa: E402
import pathlib  # noqa: E402
import time  # noqa: E402

import torch  # noqa: E402

import card  # noqa: E402
import checkpoint_files  # noqa: E402
import corpus  # noqa: E402
import data  # noqa: E402
import evaluate  # noqa: E402
import model  # noqa: E402
import tokenizer  # noqa: E402
import train  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SHIPPED = HERE.parents[1] / "models/builtin"
FOLLOWS = 0.05  # nats: largest difference of the first steps' mean loss from the card's


def choose_arithmetic(wanted, device):
    """Measures whether float32 or bf16 multiplies faster on this machine."""
    if wanted != "auto":
        return model.Arithmetic(wanted == "bf16")
    speed = {}
    for bf16 in (False, True):
        arithmetic = model.Arithmetic(bf16)
        a, b = torch.ones(1024, 256, device=device), torch.ones(256, 1408, device=device)
        best = float("inf")
        for _ in range(6):
            begun = time.perf_counter()
            arithmetic.mm(a, b)[0, 0].item()
            best = min(best, time.perf_counter() - begun)
        speed[bf16] = 2 * 1024 * 256 * 1408 / best / 1e9
    print(f"matmul: float32 {speed[False]:.0f} GFLOP/s, bf16 {speed[True]:.0f} GFLOP/s on one worker")
    return model.Arithmetic(speed[True] > speed[False])


def read_recipe(args):
    return json.loads(args.recipe.read_text(encoding="utf-8"))


def load_decoder(folder):
    if not (folder / "model.safetensors").exists():
        raise SystemExit(f"{folder}: no model.safetensors; --model names a directory that `export` wrote")
    config = checkpoint_files.read_config(folder)
    return model.Model(config, checkpoint_files.read_weights(folder, config), model.Arithmetic(False))


def prepare_command(args):
    recipe = read_recipe(args)
    facts = data.prepare(args.text, args.work, recipe["seed"], recipe["dialogue_share"], model.Config().hidden)
    print(json.dumps(facts))


def train_command(args):
    recipe = read_recipe(args)
    if not (args.work / "train.bin").exists():
        prepare_command(args)
    torch.set_num_threads(1)
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    config, weights = model.Config(), None
    if args.init:
        if args.init.joinpath("tokenizer.json").read_bytes() != args.work.joinpath("tokenizer.json").read_bytes():
            raise SystemExit(f"{args.init}: its tokenizer is not the one of {args.work}; the tokens would mean other words")
        if checkpoint_files.read_config(args.init) != config:
            raise SystemExit(f"{args.init}: its configuration is not the one that this program trains")
        weights = checkpoint_files.read_weights(args.init, config)
        before = card.totals(args.init / "loss.csv")
        (args.work / "before.json").write_text(json.dumps(before) + "\n")
    run = train.Run(args.work, recipe, config, choose_arithmetic(args.matmul, device), device, args.workers)
    run.begin(weights)
    run.train(args.steps)


def export_command(args):
    torch.set_num_threads(os.cpu_count())
    config = model.Config()
    kept = torch.load(args.work / "checkpoint.pt", map_location="cpu")
    weights = model.views(kept["weights"], config)
    if kept["progress"]["layers"] != config.layers:
        model.grow(weights, kept["progress"]["layers"], config.layers)
    checkpoint_files.export(args.model, weights, config, args.work / "tokenizer.json")
    log = card.read_log(args.work / "log.jsonl")
    (args.model / "loss.csv").write_text(card.loss_csv(log))
    (args.model / "loss.svg").write_text(card.picture(log))


def evaluate_command(args):
    decoder, encoder = load_decoder(args.model), tokenizer.Tokenizer.load(args.model / "tokenizer.json")
    found = evaluate.held_out(decoder, encoder, args.text, args.context, args.stride)
    for name, score in found.items():
        print(name, json.dumps(score))


def card_command(args):
    decoder, encoder = load_decoder(args.model), tokenizer.Tokenizer.load(args.model / "tokenizer.json")
    scores = evaluate.held_out(decoder, encoder, args.text, 1024, 512)
    facts = json.loads((args.work / "data.json").read_text(encoding="utf-8"))
    log = card.read_log(args.work / "log.jsonl")
    before = args.work / "before.json"
    facts["before"] = json.loads(before.read_text()) if before.exists() else {"steps": 0, "tokens": 0}
    text = card.card(log, facts, scores, card.continuations(decoder, encoder), args.hardware)
    (args.model / "README.md").write_text(text, encoding="utf-8")


def texts_command(args):
    args.out.mkdir(parents=True, exist_ok=True)
    for name, documents in (("books", corpus.held_out_books(args.text)), ("stories", corpus.stories(args.text)[1])):
        lines = [json.dumps({"name": document.name, "text": document.text}) for document in documents]
        (args.out / f"held_out_{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def continue_command(args):
    decoder, encoder = load_decoder(args.model), tokenizer.Tokenizer.load(args.model / "tokenizer.json")
    print(card.continuations(decoder, encoder))


def follow_command(args):
    if not (args.model / "loss.csv").exists():
        raise SystemExit(f"{args.model}: no loss.csv; --model names a directory that `export` wrote")
    log = card.read_log(args.work / "log.jsonl")
    apart = card.differences(log, (args.model / "loss.csv").read_text(), args.steps)
    if not apart:
        raise SystemExit("no step is in both the work folder's log and the card's")
    mean = sum(apart) / len(apart)
    print(f"{len(apart)} steps: the loss lies {mean:.4f} nats from the card's on average, {max(apart):.4f} at most")
    if mean > FOLLOWS:
        raise SystemExit(f"that is more than {FOLLOWS}: this is another training run")


def duplicates_command(args):
    for name, (share, other) in corpus.near_duplicates(args.text).items():
        nearest = f"most with {other}" if share else "with any training document"
        print(f"{name}: shares {100 * share:.2f} % of its 13-word sequences {nearest}")


def arguments():
    parser = argparse.ArgumentParser(prog="builtin_model", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name, act, about, *options):
        made = commands.add_parser(name, help=about, description=about)
        made.set_defaults(act=act)
        if "text" in options:
            made.add_argument("--text", type=pathlib.Path, default=HERE.parents[2] / "shared/data/text",
                              help="folder with books/ and tinystories/")
        if "work" in options:
            made.add_argument("--work", type=pathlib.Path, required=True,
                              help="folder for tokens, checkpoints and the log")
            made.add_argument("--recipe", type=pathlib.Path, default=HERE / "recipe.json")
        if "model" in options:
            made.add_argument("--model", type=pathlib.Path, default=SHIPPED, help="model directory")
        return made

    command("prepare", prepare_command, "train the tokenizer and encode the text", "text", "work")
    training = command("train", train_command, "train, or go on from the work folder's checkpoint", "text", "work")
    training.add_argument("--steps", type=int, help="stop after this step, counted from the first of all")
    training.add_argument("--init", type=pathlib.Path, help="begin with the weights of this model directory")
    training.add_argument("--workers", type=int, default=os.cpu_count(), help="processes, one core each")
    training.add_argument("--matmul", choices=("auto", "float32", "bf16"), default="auto")
    training.add_argument("--device", choices=("cpu", "cuda"))
    command("export", export_command, "write the checkpoint as a model directory, with the loss curve", "work", "model")
    scoring = command("evaluate", evaluate_command, "bits per byte on the held-out text", "text", "model")
    scoring.add_argument("--context", type=int, default=1024)
    scoring.add_argument("--stride", type=int, default=512)
    describing = command("card", card_command, "write the model's card: scores, phases, samples", "text", "work", "model")
    describing.add_argument("--hardware", required=True, help="what it was trained on, in words")
    texts = command("texts", texts_command, "write the held-out texts for `protean eval`", "text")
    texts.add_argument("--out", type=pathlib.Path, required=True, help="folder for held_out_*.jsonl")
    command("continue", continue_command, "what the model writes after the card's five prompts", "model")
    following = command("follow", follow_command, "does the log follow the shipped loss curve?", "work", "model")
    following.add_argument("--steps", type=int, default=200)
    command("duplicates", duplicates_command, "is a held-out book in the training text under another name?", "text")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = arguments()
    chosen.act(chosen)
