#!/usr/bin/env python3
"""Golden values and gradients for lib/rl, by autograd in double.

    VENV/bin/python tests/golden/make_rl.py        (needs PyTorch)

Writes tests/golden/rl.json: batches of sequences with masked tokens (NaN and huge numbers under the mask, which a
sum must not meet), and for many settings the loss, its metrics, dL/dlogp and dL/dentropy of every token, and GRPO
advantages. The formulas are written down here anew, from the papers and verl's documented semantics: PPO with dual clip
and clip-higher, four KL estimators, entropy bonus, five ways to aggregate with denominators of the whole mini-batch.
"""
import itertools
import json
import math
import os

import torch

torch.set_default_dtype(torch.float64)
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rl.json")
AGGREGATIONS = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum"]
KLS = ["kl", "abs", "mse", "low_var_kl"]


def make_batch(seed, sequences, width):
    """Log-ratios from tiny to beyond every clamp, both signs of advantage, one sequence with nothing to train."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(sequences, width, generator=g) * 6
    scale = torch.tensor([0.02, 0.3, 1.5, 12.0])[torch.randint(0, 4, (sequences, width), generator=g)]
    logp = old + torch.randn(sequences, width, generator=g) * scale
    ref = old + torch.randn(sequences, width, generator=g) * scale.flip(1)
    entropy = torch.rand(sequences, width, generator=g) * 3
    mask = torch.rand(sequences, width, generator=g) < 0.7
    mask[sequences // 2] = False
    logp[0, 0], old[0, 0], mask[0, 0] = -0.5, -25.0, True  # beyond +20
    logp[1, 0], old[1, 0], mask[1, 0] = -26.0, -1.0, True  # beyond -20
    ref[1, 1], logp[1, 1], mask[1, 1] = -0.1, -30.0, True  # KL beyond its clamps
    advantage = torch.randn(sequences, generator=g)
    advantage[1] = advantage[1].abs() + 1  # so that nothing else stops the gradient beyond -20
    advantage[-1] = 0.0
    return dict(logp=logp, old_logp=old, ref_logp=ref, entropy=entropy, mask=mask, advantage=advantage)


def pick(x, mask, trap):
    """x where trained; under the mask a trap in the file, zero in the sums."""
    return torch.where(mask, x, torch.full_like(x, trap))


def aggregate(x, mask, how, norm, tokens, sequences):
    x = torch.where(mask, x, torch.zeros_like(x))
    if how == "token-mean":
        return x.sum() / tokens
    if how == "token-sum":
        return x.sum()
    per_sequence = x.sum(-1)
    if how == "seq-mean-token-mean":
        per_sequence = per_sequence / (mask.sum(-1) + 1e-8)
    return per_sequence.sum() / sequences / (norm if how == "seq-mean-token-sum-norm" else 1)


def kl(kind, logp, ref):
    d = logp - ref
    if kind == "kl":
        return d
    if kind == "abs":
        return d.abs()
    if kind == "mse":
        return d.square() / 2
    back = (-d).clamp(-20, 20)
    return (back.exp() - back - 1).clamp(-10, 10)


def losses(b, c, tokens, sequences):
    logp, entropy = b["logp"].clone().requires_grad_(), b["entropy"].clone().requires_grad_()
    mask, adv = b["mask"], b["advantage"].unsqueeze(-1)
    log_ratio = (logp - b["old_logp"]).clamp(-20, 20)
    ratio = log_ratio.exp()
    plain, bounded = -adv * ratio, -adv * ratio.clamp(1 - c["clip_low"], 1 + c["clip_high"])
    outer = torch.maximum(plain, bounded)
    ceiling = -adv * c["clip_c"]
    pg = torch.where(adv < 0, torch.minimum(ceiling, outer), outer)

    def agg(x):
        return aggregate(x, mask, c["agg"], c["agg_norm"], tokens, sequences)

    def mean(x):
        return aggregate(x.to(torch.float64), mask, "token-mean", 1, tokens, sequences).item()

    pg_loss, entropy_loss = agg(pg), agg(entropy)
    loss = pg_loss - c["entropy_coeff"] * entropy_loss
    metrics = {"actor/pg_loss": pg_loss.item(), "actor/entropy_loss": entropy_loss.item(), "actor/pg_clipfrac": mean(bounded > plain),
               "actor/pg_clipfrac_lower": mean((outer > ceiling) & (adv < 0)), "actor/ppo_kl": mean(-log_ratio)}
    if c["kl"]:
        kl_loss = agg(kl(c["kl"], logp, b["ref_logp"]))
        loss = loss + c["kl_coef"] * kl_loss
        metrics["actor/kl_loss"] = kl_loss.item()
        metrics["actor/kl_coef"] = c["kl_coef"]
    loss.backward()
    zero = torch.zeros_like(logp)
    return dict(loss=loss.item(), metrics=metrics, dlogp=torch.where(mask, logp.grad, zero).tolist(),
                dentropy=torch.where(mask, entropy.grad, zero).tolist() if entropy.grad is not None else zero.tolist())


def clean(x):
    """NaN as a string: JSON has none."""
    return [clean(y) for y in x] if isinstance(x, list) else "nan" if isinstance(x, float) and math.isnan(x) else x


def policy_cases():
    out = []
    for seed, (sequences, width) in enumerate([(4, 6), (6, 3)]):
        b = make_batch(seed, sequences, width)
        trained = int(b["mask"].sum())
        file = {k: clean(pick(v, b["mask"], trap).tolist()) for k, v, trap in
                [("logp", b["logp"], math.nan), ("old_logp", b["old_logp"], 1e300), ("ref_logp", b["ref_logp"], math.nan), ("entropy", b["entropy"], -1e300)]}
        file.update(mask=b["mask"].int().tolist(), advantage=b["advantage"].tolist(), cases=[])
        settings = itertools.product(AGGREGATIONS, [None] + KLS, [(0.2, 0.2, 3.0), (0.2, 0.28, 10.0), (0.1, 0.3, 1.5)])
        for i, (agg, kl_kind, (low, high, ceiling)) in enumerate(settings):
            # denominators of a mini-batch of which this is only a part
            tokens, seqs = (trained, sequences) if i % 2 == 0 else (trained + 17, sequences + 3)
            c = dict(agg=agg, agg_norm=7.0, clip_low=low, clip_high=high, clip_c=ceiling, kl=kl_kind, kl_coef=0.05, entropy_coeff=[0.0, 0.01][i % 3 == 1])
            file["cases"].append(dict(c, tokens=tokens, sequences=seqs, want=losses(b, c, tokens, seqs)))
        out.append(file)
    return out


def advantage_cases():
    g = torch.Generator().manual_seed(5)
    out = []
    for groups in [[0, 0, 1, 1], [3, 1, 3, 1, 1, 3], [9], [1, 2, 3], [4] * 5, [0, 1, 0, 1, 2, 0, 3, 3]]:
        for kind in ["random", "equal", "binary"]:
            n = len(groups)
            s = torch.randn(n, generator=g) if kind == "random" else torch.full((n,), 0.1) if kind == "equal" else torch.randint(0, 2, (n,), generator=g).double()
            for norm in (True, False):
                a = torch.empty(n)
                for i in range(n):
                    mine = s[[j for j in range(n) if groups[j] == groups[i]]]
                    mean, std = (mine.mean(), mine.std()) if len(mine) > 1 else (torch.tensor(0.0), torch.tensor(1.0))
                    equal = len(mine) > 1 and bool((mine == mine[0]).all())
                    a[i] = 0.0 if equal else (s[i] - mean) / ((std + 1e-6) if norm else 1.0)
                out.append(dict(score=s.tolist(), group=groups, norm_by_std=norm, want=a.tolist()))
    return out


def sft_case():
    g = torch.Generator().manual_seed(6)
    logp = (-torch.rand(9, generator=g) * 4).requires_grad_()
    loss = -logp.sum() / 23
    loss.backward()
    return dict(logp=logp.tolist(), tokens=23, loss=loss.item(), dlogp=logp.grad.tolist())


def main():
    with open(OUT, "w") as f:
        json.dump(dict(made_with="torch " + torch.__version__.split("+")[0], policy=policy_cases(), advantage=advantage_cases(), sft=sft_case()), f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
