#!/usr/bin/env python3
"""The peer of bench_train and bench_decode: the same shapes in PyTorch and transformers, fp32, on the CPU.

    torch_peer.py FOLDER [--threads 2] [--repeat 20] [--compile] CASE...

A case is a line of settings as the C programs take them, after its kind:
    "train sft=1 rows=128 length=8"   "train rows=512 length=8"   "decode sequences=512 prompt=6 new=12"
Prints one JSON line a case, with the C programs' names. Only config.json of FOLDER is read: speed does not depend on weights.

What a careful user would write: rows padded to the longest, SDPA attention, the head on trained positions only, fused AdamW,
clipping, the fastest of three ways to generate (transformers' generate; a bare loop over a dynamic and a static cache).
"""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache


def new_model(folder):
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = "sdpa"
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def best_of(repeat, fn):
    """Seconds of fn: the best of so many calls after one that warms up; fewer where they take more than 3 s.

    Processor time where one thread runs, which a crowded machine bends little; else wall time.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    fn()
    best, begin = float("inf"), time.perf_counter()
    for _ in range(repeat):
        start = clock()
        fn()
        best = min(best, clock() - start)
        if time.perf_counter() - begin > 3:
            break
    return best


class Batch:
    """Rows as bench_train makes them, padded on the right; head: positions that predict a trained token."""

    def __init__(self, rows, length, vocab):
        self.ids = torch.zeros(rows, length, dtype=torch.long)
        self.mask = torch.zeros(rows, length, dtype=torch.long)
        trained = torch.zeros(rows, length, dtype=torch.bool)
        self.tokens = 0
        for r in range(rows):
            n = length - r % 4
            self.tokens += n
            self.ids[r, :n] = torch.tensor([(r * 31 + i * 7) % vocab for i in range(n)])
            self.mask[r, :n] = 1
            trained[r, n // 2:n] = True
        at = trained.nonzero()
        self.head = (at[:, 0], at[:, 1] - 1)
        self.target = self.ids[at[:, 0], at[:, 1]]
        self.advantage = torch.where(at[:, 0] % 2 == 1, 1.0, -1.0)


def log_probs(model, batch, entropy=False):
    hidden = model.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[batch.head])
    logp = -F.cross_entropy(logits, batch.target, reduction="none")
    return (logp, torch.distributions.Categorical(logits=logits).entropy()) if entropy else logp


def train(folder, a, repeat, compiled):
    model = new_model(folder)
    run = torch.compile(log_probs, dynamic=False) if compiled else log_probs
    batch = Batch(a["rows"], a["length"], model.config.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)

    def score():
        with torch.no_grad():
            return run(model, batch)

    old = score()

    def loss_of(logp):
        if a["sft"]:
            return -logp.mean()
        ratio = (logp - old).exp()
        return -torch.min(ratio * batch.advantage, ratio.clamp(0.8, 1.2) * batch.advantage).mean()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(run(model, batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step_s = best_of(repeat, step)
    prep_s = 0 if a["sft"] else best_of(repeat, score)
    return dict(bench="train", kind="sft" if a["sft"] else "grpo", rows=a["rows"], length=a["length"], tokens=batch.tokens,
                prep_s=round(prep_s, 6), step_s=round(step_s, 6),
                score_tokens_per_s=round(batch.tokens / prep_s) if prep_s else 0, train_tokens_per_s=round(batch.tokens / step_s))


def bare_loop(model, ids, new, cache):
    """Sampling by the Gumbel maximum, which is cheaper than torch.multinomial, and the log-prob of each token."""
    logps = []
    token = ids
    position = torch.arange(ids.shape[1])
    for i in range(new):
        logits = model(input_ids=token, past_key_values=cache, cache_position=position, position_ids=position[None],
                       use_cache=True, logits_to_keep=1).logits[:, -1]
        token = (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1, keepdim=True)
        logps.append(torch.log_softmax(logits, -1).gather(1, token))
        position = position[-1:] + 1
    return logps


def decode(folder, a, repeat, _compiled):
    model = new_model(folder).eval()
    b, prompt, new = a["sequences"], a["prompt"], a["new"]
    ids = torch.randint(2, model.config.vocab_size, (b, prompt))
    how = dict(max_new_tokens=new, min_new_tokens=new, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0,
               eos_token_id=None)

    def generate():
        with torch.inference_mode():
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **how)

    def dynamic():
        with torch.inference_mode():
            bare_loop(model, ids, new, DynamicCache())

    def static():
        with torch.inference_mode():
            bare_loop(model, ids, new, StaticCache(config=model.config, max_cache_len=prompt + new))

    seconds = {f.__name__: best_of(repeat, f) for f in (generate, dynamic, static)}
    way = min(seconds, key=seconds.get)
    return dict(bench="decode", sequences=b, prompt=prompt, new=new, way=way, seconds=round(seconds[way], 6),
                tokens_per_s=round(b * new / seconds[way]), generate_tokens_per_s=round(b * new / seconds["generate"]))


KINDS = {"train": (train, dict(sft=0, rows=512, length=8)), "decode": (decode, dict(sequences=512, prompt=6, new=12))}


def main():
    ap = argparse.ArgumentParser(usage="torch_peer.py FOLDER [--threads N] [--repeat N] [--compile] CASE...")
    ap.add_argument("folder")
    ap.add_argument("cases", nargs="+")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--repeat", type=int, default=20)
    ap.add_argument("--compile", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    for case in a.cases:
        kind, *settings = case.split()
        fn, values = KINDS[kind]
        known = dict(values, samples=0, micro=0)
        given = {k: int(v) for k, v in (s.split("=") for s in settings)}
        if not given.keys() <= known.keys():
            sys.exit("torch_peer.py: unknown setting in '%s'" % case)
        print(json.dumps(dict(fn(a.folder, {**known, **given}, a.repeat, a.compile), threads=a.threads)), flush=True)


if __name__ == "__main__":
    main()
