"""The training tokens on disk, and the order in which they are read."""

import json

import numpy
import torch

import corpus
import embedding
import tokenizer

BLOCK = 1024  # tokens that are drawn together; shorter windows are equal parts of a block


def prepare(text, work, seed, dialogue_share, hidden):
    """Writes the tokenizer, the tokens (16-bit ids), a first embedding and their description into `work`."""
    work.mkdir(parents=True, exist_ok=True)
    documents = corpus.training(text)
    trained = tokenizer.train(document.text for document in documents)
    tokenizer.write(trained, work / "tokenizer.json")
    encoder = tokenizer.Tokenizer(trained)
    ids = []
    for document in documents:
        ids += [tokenizer.BOS, *encoder.encode(document.text), tokenizer.EOS]
    prose = len(ids)
    characters = sum(len(document.text) for document in documents)
    for turns in corpus.dialogues(documents, characters * dialogue_share, seed):
        ids += encoder.encode_dialogue(turns)
    ids = numpy.array(ids, dtype="<u2")
    ids.tofile(work / "train.bin")
    numpy.save(work / "embedding.npy", embedding.from_neighbours(ids, tokenizer.VOCABULARY, hidden, seed))
    held_out = corpus.held_out_books(text) + corpus.stories(text)[1]
    facts = {"documents": len(documents), "tokens": len(ids), "dialogue_tokens": len(ids) - prose,
             "training_text": corpus.digest(documents), "held_out_text": corpus.digest(held_out)}
    (work / "data.json").write_text(json.dumps(facts, indent=1) + "\n")
    sample = [token for book in corpus.held_out_books(text) for token in encoder.encode(book.text)[:16 * BLOCK]]
    numpy.array(sample, dtype="<u2").tofile(work / "held_out.bin")
    byte_count = sum(len(encoder.spelling[token]) for token in sample)
    (work / "held_out.json").write_text(json.dumps({"tokens": len(sample), "bytes": byte_count}) + "\n")
    return facts


class Reader:
    """Reads every block of the text once an epoch, in an order that the seed and the epoch decide."""

    def __init__(self, path, seed):
        self.ids = numpy.fromfile(path, dtype="<u2").astype(numpy.int64)
        self.seed, self.blocks = seed, len(self.ids) // BLOCK
        if self.blocks == 0:
            raise SystemExit(f"{path}: fewer than {BLOCK} tokens")
        self.epoch, self.order = -1, None

    def block(self, position):
        epoch, place = divmod(position, self.blocks)
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = numpy.random.RandomState(self.seed + epoch).permutation(self.blocks)
        start = int(self.order[place]) * BLOCK
        return self.ids[start:start + BLOCK + 1]

    def windows(self, positions, window, bare):
        """(inputs, targets) of all windows of the blocks at the positions. Each begins with BOS, or, if bare, only
        every other one does: a long text is later read in windows that begin in its middle."""
        inputs, targets = [], []
        for position in positions:
            ids = torch.from_numpy(self.block(position))
            block_targets = ids[:BLOCK].view(-1, window).clone()
            block_inputs = with_bos(block_targets)
            if bare and len(ids) > BLOCK:
                odd = slice(position % 2, None, 2)
                block_inputs[odd], block_targets[odd] = block_targets[odd], ids[1:].view(-1, window)[odd]
            inputs.append(block_inputs)
            targets.append(block_targets)
        return torch.cat(inputs), torch.cat(targets)


def with_bos(targets):
    """Returns the tokens from which the model predicts the targets."""
    inputs = torch.full_like(targets, tokenizer.BOS)
    inputs[:, 1:] = targets[:, :-1]
    return inputs
