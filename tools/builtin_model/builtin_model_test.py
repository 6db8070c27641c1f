#!/usr/bin/env python3
"""Tests of the training program. Exits with 77 (skipped) where its packages are not installed."""

import contextlib
import json
import math
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
try:
    import numpy
    import regex  # noqa: F401
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; see tools/builtin_model/README.md")
    sys.exit(77)

import card
import checkpoint_files
import corpus
import data
import evaluate
import model
import tokenizer
import train

TINY = model.Config(layers=2, hidden=64, heads=4, kv_heads=2, ffn=96, vocabulary=128, context=1024)
RECIPE = {"seed": 3, "muon_rate": 0.02, "adam_rate": 0.01, "held_out_every": 8, "phases": [
    {"steps": 12, "layers": 1, "window": 128, "batch": 2048, "rate": [0.5, 1.0]},
    {"steps": 8, "layers": 2, "window": 256, "batch": 2048, "bare": True, "rate": [1.0, 0.1]}]}
TEXT = "The ship's cook had 1887 apples; \u201cna\u00efve\u201d caf\u00e9.\n\nHe ran, she ran, they ran.  \tAway! "


def random_weights(config, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = model.views(torch.zeros(model.parameter_count(config)), config)
    for tensor in weights.values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2 + (1 if tensor.dim() == 1 else 0))
    return weights


def plain_loss(config, weights, tokens, targets):
    """The same decoder in its textbook form, in double precision."""
    def norm(x, gain):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.norm_eps) * gain

    def rope(x):
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[-2]).double()[:, None] * config.rope_theta ** (-torch.arange(half).double() / half)
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * torch.cat([angles.cos()] * 2, -1) + turned * torch.cat([angles.sin()] * 2, -1)

    batch, time = tokens.shape
    share, head = config.heads // config.kv_heads, config.head_dim
    future = torch.full((time, time), -math.inf).triu(1)
    x = weights["embed"][tokens]
    for i in range(config.layers):
        q, k, v = (norm(x, weights[f"{i}.norm1"]) @ weights[f"{i}.qkv"].t()).split(config.qkv_rows, 2)
        q, k, v = (part.view(batch, time, -1, head).transpose(1, 2) for part in (q, k, v))
        q, k, v = rope(q), rope(k).repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        mixed = (q @ k.transpose(-1, -2) / math.sqrt(head) + future).softmax(-1) @ v
        x = x + mixed.transpose(1, 2).reshape(batch, time, -1) @ weights[f"{i}.o"].t()
        gate, up = (norm(x, weights[f"{i}.norm2"]) @ weights[f"{i}.gate_up"].t()).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ weights[f"{i}.down"].t()
    logits = norm(x, weights["norm"]) @ weights["embed"].t()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@contextlib.contextmanager
def work_folder():
    """Tokens that a bigram predicts: 0..127 in a cycle, with jumps."""
    with tempfile.TemporaryDirectory() as name:
        folder, rng = pathlib.Path(name), numpy.random.RandomState(5)
        ids = numpy.cumsum(rng.choice([1, 2, 7], size=40 * data.BLOCK)) % TINY.vocabulary
        ids.astype("<u2").tofile(folder / "train.bin")
        ids[:2 * data.BLOCK].astype("<u2").tofile(folder / "held_out.bin")
        (folder / "held_out.json").write_text(json.dumps({"tokens": 2 * data.BLOCK, "bytes": 2 * data.BLOCK}))
        numpy.save(folder / "embedding.npy", rng.randn(TINY.vocabulary, TINY.hidden).astype("float32") / 8)
        yield folder


def run(folder, workers=1, last_step=None, weights=None):
    made = train.Run(folder, RECIPE, TINY, model.Arithmetic(False), "cpu", workers)
    made.begin(weights)
    made.train(last_step)
    return made


class Decoder(unittest.TestCase):
    def test_loss_and_gradients_are_the_textbooks(self):
        weights = random_weights(TINY, 1)
        generator = torch.Generator().manual_seed(2)
        tokens, targets = torch.randint(0, 128, (2, 2, 300), generator=generator)
        ours = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        plain = {name: tensor.double().requires_grad_() for name, tensor in weights.items()}
        loss, expected = model.Model(TINY, ours, model.Arithmetic(False)).loss(tokens, targets), \
            plain_loss(TINY, plain, tokens, targets)
        self.assertAlmostEqual(float(loss) / float(expected), 1, places=5)
        loss.backward()
        expected.backward()
        for name, tensor in plain.items():
            apart = (ours[name].grad - tensor.grad).norm() / tensor.grad.norm()
            self.assertLess(float(apart), 1e-4, name)

    def test_growing_keeps_the_function(self):
        weights = random_weights(TINY, 1)
        decoder = model.Model(TINY, weights, model.Arithmetic(False))
        tokens = torch.arange(96).view(1, -1)
        decoder.layers = 1
        before = float(decoder.loss(tokens, tokens))
        model.grow(weights, 1, 2)
        decoder.layers = 2
        self.assertAlmostEqual(float(decoder.loss(tokens, tokens)) / before, 1, places=5)
        self.assertTrue(torch.equal(weights["1.qkv"], weights["0.qkv"]))

    def test_windows_score_each_token_once(self):
        for tokens, context, stride in ((50, 64, 32), (50, 16, 5), (1000, 100, 99), (2, 2, 1)):
            scored = [i for _, first, end in evaluate.cut_windows(tokens, context, stride) for i in range(first, end)]
            self.assertEqual(scored, list(range(1, tokens)))
        decoder = model.Model(TINY, random_weights(TINY, 1), model.Arithmetic(False))
        ids = [(7 * i) % 128 for i in range(50)]
        targets = torch.tensor([ids])
        whole = float(decoder.loss(data.with_bos(targets), targets))
        torch.set_num_threads(1)
        scores = evaluate.score_all(decoder, [ids, ids[:20], ids], 64, 32)
        self.assertAlmostEqual(scores[0], whole, places=2)
        self.assertEqual(scores[0], scores[2])
        self.assertLess(scores[1], scores[0])


class Training(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def test_loss_falls_and_a_resumed_run_is_the_same_run(self):
        with work_folder() as whole, work_folder() as parted:
            straight = run(whole)
            for last in (5, 14, None):  # within a phase, and past the growth of the model
                resumed = run(parted, last_step=last)
            self.assertTrue(torch.equal(straight.shared.weights, resumed.shared.weights))
            losses = [[e["loss"] for e in card.read_log(folder / "log.jsonl")] for folder in (whole, parted)]
            self.assertEqual(losses[0], losses[1])
            self.assertEqual(len(losses[0]), 20)
            self.assertLess(losses[0][-1], losses[0][0] - 0.5)

    def test_two_workers_make_the_same_steps(self):
        with work_folder() as alone, work_folder() as together:
            one, two = run(alone, 1), run(together, 2)
            self.assertLess(float((one.shared.weights - two.shared.weights).abs().max()), 1e-2)
            losses = [card.read_log(folder / "log.jsonl")[-1]["loss"] for folder in (alone, together)]
            self.assertAlmostEqual(losses[0], losses[1], places=2)

    def test_goes_on_from_an_exported_model(self):
        with work_folder() as folder, work_folder() as second:
            first = run(folder)
            weights = model.views(first.shared.weights, TINY)
            (folder / "tokenizer.json").write_text("{}")
            checkpoint_files.export(folder / "model", weights, TINY, folder / "tokenizer.json")
            self.assertEqual(checkpoint_files.read_config(folder / "model"), TINY)
            read = checkpoint_files.read_weights(folder / "model", TINY)
            for name, tensor in weights.items():
                self.assertTrue(torch.equal(read[name], tensor.bfloat16().float()), name)
            again = train.Run(second, RECIPE, TINY, model.Arithmetic(False), "cpu", 1)
            again.begin(read)
            self.assertTrue(torch.equal(model.views(again.shared.weights, TINY)["1.down"], read["1.down"]))


class Words(unittest.TestCase):
    def test_training_is_reproducible_and_nothing_is_lost(self):
        texts = [TEXT * 3, TEXT[::-1]]
        trained = tokenizer.train(texts, 300)
        self.assertEqual(json.dumps(trained), json.dumps(tokenizer.train(texts, 300)))
        encoder = tokenizer.Tokenizer(trained)
        for text in [*texts, "\u65e5\u672c \U0001F600 \r\n\t  x  \n\n 12345 <|bos|>", ""]:
            self.assertEqual(encoder.decode(encoder.encode(text)), text)
        self.assertLess(len(encoder.encode(TEXT)), len(TEXT.encode()) * 0.7)

    def test_dialogues_are_framed_as_the_chat_template_frames_them(self):
        encoder = tokenizer.Tokenizer(tokenizer.train([TEXT * 3], 280))
        ids = encoder.encode_dialogue([corpus.Turn("user", "He ran"), corpus.Turn("assistant", "Away")])
        self.assertEqual([i for i in ids if i < len(tokenizer.SPECIAL)],
                         [tokenizer.BOS, tokenizer.USER, tokenizer.END, tokenizer.ASSISTANT, tokenizer.END])


class Order(unittest.TestCase):
    def test_an_epoch_reads_every_block_once(self):
        with work_folder() as folder:
            reader = data.Reader(folder / "train.bin", 1)
            epochs = [[tuple(reader.block(e * reader.blocks + i)[:data.BLOCK]) for i in range(reader.blocks)]
                      for e in (0, 1)]
            self.assertNotEqual(epochs[0], epochs[1])
            self.assertEqual(sorted(epochs[0]), sorted(epochs[1]))
            self.assertEqual(sum(epochs[0][0] == block for block in epochs[0]), 1)

    def test_windows_with_bos_and_in_the_middle_of_a_text(self):
        with work_folder() as folder:
            reader = data.Reader(folder / "train.bin", 1)
            for bare in (False, True):
                inputs, targets = reader.windows([0, 1], 256, bare)
                self.assertEqual(inputs.shape, (8, 256))
                self.assertTrue(torch.equal(inputs[:, 1:], targets[:, :-1]))
                begun = (inputs[:, 0] == tokenizer.BOS).sum()
                self.assertEqual(begun, 4 if bare else 8)


class Texts(unittest.TestCase):
    def test_held_out_text_is_not_trained_on(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "books").mkdir()
            (folder / "tinystories").mkdir()
            for book in (*corpus.HELD_OUT_BOOKS, "A--Kept.md"):
                (folder / "books" / book).write_text(f"# Title: {book}\n\n" + "word " * 20)
            told = "".join(f"Story {i}.\n{corpus.STORY_END}\n" for i in range(40)) + "cut in its"
            (folder / "tinystories" / corpus.TINYSTORIES).write_text(told)
            trained = {d.text for d in corpus.training(folder)}
            kept_out = [d.text for d in corpus.held_out_books(folder) + corpus.stories(folder)[1]]
            self.assertEqual(len(kept_out), 5)
            self.assertFalse(trained & set(kept_out))
            self.assertEqual(len(trained), 1 + 38)
            self.assertEqual(kept_out[-1], "Story 39.")


if __name__ == "__main__":
    unittest.main()
