#!/usr/bin/env python3
"""Golden ids for lib/text: small byte-level tokenizers of four families, and what HF tokenizers make of some texts.

    VENV/bin/python tests/golden/make_tokenizer.py        (needs the package tokenizers)

Writes tests/golden/tokenizer/FAMILY/tokenizer.json and tests/golden/tokenizer/cases.json. The merges are learned from the
sentences below. The families differ in what real model files differ in: GPT-2 (pattern built into ByteLevel, merges as strings,
added token inside the vocabulary), Llama-3 (own pattern, ignore_merges, merges as pairs, tokens beyond the vocabulary), SmolLM2
(single digits, then GPT-2's pattern), Qwen2 (NFC, one digit a token, added tokens that are not special).
"""
import json
import os
import random

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
SENTENCES = """
The river rises in the northern hills, and the rivers of the plain rise later in the year.
She said: "we're late, they've left, I'll walk, he'd rather wait, it's fine, I'm sure, don't worry."
12 apples and 345 pears cost 6789 coins; 1+1=2, 10+20=30, 17+28=45, 99-98=1.
Counting, adding, subtracting, multiplying and dividing: numbers, number after number.
def area(width, height):
    return width * height  # the area of the rectangle

    the line above ends with spaces    and tabs\tand more\t\ttabs
Über den Flüssen wächst süßer Käse; l'été à la plage, où êtes-vous?
Река течёт на север, и реки текут на юг.
The answer is 42. The answers are 4, 8, 15, 16, 23 and 42.
""" * 3

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


FAMILIES = {
    "gpt2": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=False), special=["<|endoftext|>"]),
    "llama3": dict(pre=split(LLAMA3), special=["<|begin_of_text|>", "<|end_of_text|>", "<|end|>", "<|end|>x"], ignore_merges=True),
    "smollm2": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                    special=["<|im_start|>", "<|im_end|>"]),
    "qwen2": dict(pre=split(QWEN2), special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], plain=["<think>", "</think>"], nfc=True),
}

TEXTS = [
    "", " ", "  ", "a", " a", "The answer is 42.", "the rivers rise\n", "we're LATE they'VE left it's I'LL", "17+28=45", "1234567 12 3", "x  y   z    ",
    "\n\n\n", " \n \n", "a\n\n\nb", "\t\ttabs\tand  spaces \t", "def area(width, height):\n    return width * height\r\n", "Flüsse süß Über ÜBER",
    "cafe\u0301 e\u0301te\u0301 \u212b \u0041\u030a", "Река течёт, рекИ текут!", "中文字 日本語 한국어", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ok",
    "a\u00a0b\u2003c\u3000d\u180ee\u0085f", "\u180e \u180e\u180e x", "½ ² Ⅷ ٣٤٥ १२", "'ſ 'S ’s", "<|endoftext|>a<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|end|>x<|end|>y<|end|", "<think>hm</think> <|begin_of_text|><|end_of_text|>", "<|im_end|><|im_end|><<|im_end|>>", "!!??..--__//\\\\{}[]()", "\x00\x01\x7f",
    "\ufeffBOM", "numbernumber counting" * 6, "ab" * 200, "=" * 100, " " * 70 + "x",
]


def fuzz(n, seed):
    rng = random.Random(seed)
    parts = list("aet 019.,'\n\t<|>") + ["the", " The", "ing", "12", "'s", "'RE", "  ", "\r\n", "<|im_end|>", "<|end|>", "<think>", "é", "e\u0301", "ж", "中", "\u00a0", "\u180e", "\U0001f600", "½"]
    return ["".join(rng.choice(parts) for _ in range(rng.randint(1, 20))) for _ in range(n)]


def make(name, f, base):
    model = json.loads(base)["model"]
    vocab, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    if name == "gpt2":
        vocab = dict(vocab, **{"<|endoftext|>": len(vocab)})
    if name == "llama3":  # a whole token that its merges would not build: only ignore_merges finds it
        vocab = dict(vocab, **{"ĠLATE": len(vocab)})
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=f.get("ignore_merges", False)))
    tok.pre_tokenizer, tok.decoder, tok.post_processor = f["pre"], decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    if f.get("nfc"):
        tok.normalizer = normalizers.NFC()
    tok.add_special_tokens(f["special"])
    tok.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in f.get("plain", [])])
    d = json.loads(tok.to_str())
    if name == "gpt2":
        d["model"]["merges"] = ["#version: 0.2"] + [" ".join(m) for m in d["model"]["merges"]]
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump(d, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")
    return Tokenizer.from_file(path)


def main():
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.train_from_iterator(SENTENCES.splitlines(True), trainers.BpeTrainer(
        vocab_size=256 + 200, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    cases = {"made_with": "tokenizers " + tokenizers.__version__, "families": {}}
    texts = TEXTS + fuzz(60, 7)
    for name, f in FAMILIES.items():
        tok = make(name, f, learner.to_str())
        rows = []
        for text in texts:
            ids = tok.encode(text, add_special_tokens=False).ids
            rows.append({"text": text, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=True)})
        # pieces of characters, and ids without a token
        size = tok.get_vocab_size()
        rng = random.Random(3)
        broken = [[rng.randrange(size + 3) for _ in range(rng.randint(1, 9))] for _ in range(40)]
        cases["families"][name] = {"encode": rows, "decode": [{"ids": i, "text": tok.decode(i, skip_special_tokens=False), "skipped": tok.decode(i, skip_special_tokens=True)} for i in broken]}
    with open(os.path.join(HERE, "cases.json"), "w", encoding="utf-8") as out:
        json.dump(cases, out, ensure_ascii=True, separators=(",", ":"), indent=None)
        out.write("\n")


if __name__ == "__main__":
    main()
