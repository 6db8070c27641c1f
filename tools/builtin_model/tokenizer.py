"""Byte-level BPE: training, encoding and tokenizer.json. The same texts give the same file, bit for bit."""

import collections
import heapq
import json
import pathlib

import regex

VOCABULARY = 4096
BOS, EOS, SYSTEM, USER, ASSISTANT, END = range(6)
SPECIAL = ("<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
# Words with the space before them, numbers by three digits, punctuation with the line ends after it.
WORDS = (r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = pathlib.Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")


def byte_alphabet():
    """The printable character that stands for each byte in tokenizer.json (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, spare = {}, 256
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(spare)
            spare += 1
    return table


class Merger:
    """The state of BPE training: words as token ids, and where each pair of neighbours occurs."""

    def __init__(self, counts, first_id):
        ordered = sorted(counts.items())
        self.words = [[first_id + byte for byte in word.encode()] for word, _ in ordered]
        self.counts = [count for _, count in ordered]
        self.spelling = {first_id + byte: bytes([byte]) for byte in range(256)}
        self.pairs = collections.Counter()
        self.places = collections.defaultdict(set)
        for place, word in enumerate(self.words):
            for pair in zip(word, word[1:]):
                self.pairs[pair] += self.counts[place]
                self.places[pair].add(place)
        self.heap = [self._entry(pair) for pair in self.pairs]
        heapq.heapify(self.heap)

    def _entry(self, pair):  # if counts are equal, the spelling decides, not the order of a set
        return (-self.pairs[pair], self.spelling[pair[0]], self.spelling[pair[1]], pair)

    def best(self):
        while self.heap:
            entry = heapq.heappop(self.heap)
            if self.pairs.get(entry[3]) == -entry[0]:
                return entry[3]
        return None

    def merge(self, pair, new_id):
        self.spelling[new_id] = self.spelling[pair[0]] + self.spelling[pair[1]]
        changed = set()
        for place in self.places.pop(pair):
            self._rewrite(place, pair, new_id, changed)
        self.pairs.pop(pair, None)
        changed.discard(pair)
        for other in changed:
            if self.pairs[other] > 0:
                heapq.heappush(self.heap, self._entry(other))
            else:
                del self.pairs[other]
                self.places.pop(other, None)

    def _rewrite(self, place, pair, new_id, changed):
        word, count = self.words[place], self.counts[place]
        merged, at = [], 0
        while at < len(word):
            if at + 1 < len(word) and (word[at], word[at + 1]) == pair:
                merged.append(new_id)
                at += 2
            else:
                merged.append(word[at])
                at += 1
        if len(merged) == len(word):
            return
        for old in zip(word, word[1:]):
            self.pairs[old] -= count
            changed.add(old)
        for new in zip(merged, merged[1:]):
            self.pairs[new] += count
            self.places[new].add(place)
            changed.add(new)
        self.words[place] = merged


def train(texts, vocabulary=VOCABULARY):
    """tokenizer.json as a value."""
    split = regex.compile(WORDS)
    counts = collections.Counter()
    for text in texts:
        counts.update(split.findall(text))
    first = len(SPECIAL)
    merger = Merger(counts, first)
    merges = []
    for new_id in range(first + 256, vocabulary):
        pair = merger.best()
        if pair is None:
            raise SystemExit(f"the text is too short for {vocabulary} tokens: it ended at {new_id}")
        merger.merge(pair, new_id)
        merges.append(pair)
    alphabet = byte_alphabet()
    names = {token: "".join(alphabet[b] for b in spelling) for token, spelling in merger.spelling.items()}
    return _as_json(names, merges)


def _as_json(names, merges):
    vocabulary = {special: token for token, special in enumerate(SPECIAL)}
    vocabulary.update({names[token]: token for token in sorted(names)})
    added = [{"id": token, "content": special, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for token, special in enumerate(SPECIAL)]
    bos = {"SpecialToken": {"id": SPECIAL[BOS], "type_id": 0}}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {SPECIAL[BOS]: {"id": SPECIAL[BOS], "ids": [BOS], "tokens": [SPECIAL[BOS]]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocabulary, "merges": [f"{names[a]} {names[b]}" for a, b in merges]},
    }


def write(value, path):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def tokenizer_config(context):
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS],
            "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
            "model_max_length": context, "chat_template": CHAT_TEMPLATE}


class Tokenizer:
    """Encodes with a trained tokenizer.json; remembers every word it has seen."""

    def __init__(self, value):
        byte_of = {character: byte for byte, character in byte_alphabet().items()}
        vocabulary = value["model"]["vocab"]
        self.spelling = {token: bytes(byte_of[c] for c in name) for name, token in vocabulary.items()
                         if name not in SPECIAL}
        self.spelling.update({token: b"" for token in range(len(SPECIAL))})
        self.byte_id = {spelling[0]: token for token, spelling in self.spelling.items() if len(spelling) == 1}
        self.rank = {}
        for merge in value["model"]["merges"]:
            left, right = merge.split(" ")
            self.rank[(vocabulary[left], vocabulary[right])] = vocabulary[left + right]
        self.split = regex.compile(WORDS)
        self.words = {}

    @classmethod
    def load(cls, path):
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def encode(self, text):
        """Ids of plain text; special tokens are never recognised in it, no BOS."""
        ids, words = [], self.words
        for word in self.split.findall(text):
            known = words.get(word)
            if known is None:
                known = words[word] = self._encode_word(word)
            ids += known
        return ids

    def _encode_word(self, word):
        ids = [self.byte_id[byte] for byte in word.encode()]
        while len(ids) > 1:  # a merge's rank is its id
            best = min((self.rank.get(pair, VOCABULARY), at) for at, pair in enumerate(zip(ids, ids[1:])))
            if best[0] == VOCABULARY:
                break
            ids[best[1]:best[1] + 2] = [best[0]]
        return ids

    def encode_dialogue(self, turns):
        role = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
        ids = [BOS]
        for turn in turns:
            ids += [role[turn.role], *self.encode(turn.text), END]
        return ids

    def decode(self, ids):
        return b"".join(self.spelling[token] for token in ids).decode("utf-8", errors="replace")
