#!/usr/bin/env python3
"""Golden values of the model: logits, log-probs, entropies, gradients, and three AdamW steps.

    python make_model.py          rewrites model/cases.json and model/hf_tiny/

The model below is written out in plain torch, in double. With transformers at hand it is first
compared with LlamaForCausalLM and Qwen2ForCausalLM (float32, 1e-4), and hf_tiny/ is a folder that
transformers saved. Weights are a function of tensor name and element (weight_of), so that none have
to be committed; tests/golden/test_golden_model.c computes the same.
"""
import json
import math
import os

import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model")
MASK = (1 << 64) - 1
TEMPERATURE = 0.7
LENGTHS = [7, 1, 13, 5]
LOGIT_ROWS = [0, 6, 12, 21]
ADAMW = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 0.5

BASE = dict(vocab_size=83, hidden_size=42, intermediate_size=52, num_hidden_layers=2,
            num_attention_heads=6, head_dim=10, max_position_embeddings=64, rms_norm_eps=1e-5,
            hidden_act="silu", rope_theta=500.0, torch_dtype="float32", eos_token_id=1)
LLAMA = dict(BASE, model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False,
             mlp_bias=False)
QWEN2 = dict(BASE, model_type="qwen2", architectures=["Qwen2ForCausalLM"], use_sliding_window=False,
             sliding_window=None)
CASES = {
    "llama_gqa_untied": dict(LLAMA, num_key_value_heads=2, tie_word_embeddings=False),
    "llama3_rope_tied": dict(LLAMA, num_key_value_heads=3, tie_word_embeddings=True,
                             rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0,
                                               high_freq_factor=4.0,
                                               original_max_position_embeddings=32)),
    "qwen2_bias_tied": dict(QWEN2, num_key_value_heads=2, tie_word_embeddings=True),
    "one_kv_head": dict(LLAMA, num_key_value_heads=1, tie_word_embeddings=False),
    "all_kv_heads": dict(QWEN2, num_key_value_heads=6, tie_word_embeddings=False),
}


def mix64(x):
    """td_mix64 of lib/base/rng.h."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def unit_of(name, i):
    """A number of [-1, 1) with 24 bits, so that float32 holds it exactly."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return ((mix64((h + i) & MASK) >> 40) - (1 << 23)) / (1 << 23)


def weight_of(name, shape):
    n = math.prod(shape)
    x = torch.tensor([unit_of(name, i) for i in range(n)], dtype=torch.float64).reshape(shape)
    if name.endswith("norm.weight"):
        return 1 + x / 4
    return x / 4


def shapes(c):
    h, f, v, d = c["hidden_size"], c["intermediate_size"], c["vocab_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    out = {"model.embed_tokens.weight": (v, h)}
    for layer in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % layer
        out[p + "input_layernorm.weight"] = (h,)
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            out[p + "self_attn.%s_proj.weight" % name] = (width, h)
            if c["model_type"] == "qwen2":
                out[p + "self_attn.%s_proj.bias" % name] = (width,)
        out[p + "self_attn.o_proj.weight"] = (h, q)
        out[p + "post_attention_layernorm.weight"] = (h,)
        out[p + "mlp.gate_proj.weight"] = out[p + "mlp.up_proj.weight"] = (f, h)
        out[p + "mlp.down_proj.weight"] = (h, f)
    out["model.norm.weight"] = (h,)
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (v, h)
    return out


def frequencies(c):
    d = c["head_dim"]
    inv = [c["rope_theta"] ** (-2.0 * i / d) for i in range(d // 2)]
    s = c.get("rope_scaling")
    if not s:
        return torch.tensor(inv, dtype=torch.float64)
    low, high, n = s["low_freq_factor"], s["high_freq_factor"], s["original_max_position_embeddings"]
    out = []
    for f in inv:
        wave = 2 * math.pi / f
        if wave > n / low:
            out.append(f / s["factor"])
        elif wave < n / high:
            out.append(f)
        else:
            t = (n / wave - low) / (high - low)
            out.append((1 - t) * f / s["factor"] + t * f)
    return torch.tensor(out, dtype=torch.float64)


def norm(x, w, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


def rotate(x, angle):
    """x (S, heads, d), angle (S, d/2): the halves of a head are the pairs."""
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def logits_of(w, c, ids):
    """One sequence (S) to logits (S, V)."""
    heads, kv, d, eps = (c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"],
                         c["rms_norm_eps"])
    n = len(ids)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * frequencies(c)
    mask = torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
    x = w["model.embed_tokens.weight"][torch.tensor(ids)]
    for layer in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % layer

        def linear(y, name):
            out = y @ w[p + name + ".weight"].T
            return out + w[p + name + ".bias"] if p + name + ".bias" in w else out

        y = norm(x, w[p + "input_layernorm.weight"], eps)
        q = rotate(linear(y, "self_attn.q_proj").view(n, heads, d), angle)
        k = rotate(linear(y, "self_attn.k_proj").view(n, kv, d), angle)
        v = linear(y, "self_attn.v_proj").view(n, kv, d)
        k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
        p_att = (torch.einsum("shd,thd->hst", q, k) / math.sqrt(d) + mask).softmax(-1)
        x = x + linear(torch.einsum("hst,thd->shd", p_att, v).reshape(n, -1), "self_attn.o_proj")
        y = norm(x, w[p + "post_attention_layernorm.weight"], eps)
        gate = linear(y, "mlp.gate_proj")
        x = x + linear(gate * torch.sigmoid(gate) * linear(y, "mlp.up_proj"), "mlp.down_proj")
    x = norm(x, w["model.norm.weight"], eps)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def sequences(vocab):
    out, at = [], 0
    for n in LENGTHS:
        out.append([mix64(at + i) % vocab for i in range(n)])
        at += n
    return out


def head(w, c, seqs, temperature):
    """Logits of all rows but the last of each sequence; log-probs and entropies of their targets."""
    rows, targets = [], []
    for s in seqs:
        rows.append(logits_of(w, c, s)[:-1])
        targets += s[1:]
    z = torch.cat(rows)
    logs = (z / temperature).log_softmax(-1)
    return z, logs[torch.arange(len(targets)), torch.tensor(targets)], -(logs.exp() * logs).sum(-1)


def sampled(name, t, weight=None):
    """Six elements, of those whose gradient is no rounding matter (weight) where that is given."""
    flat = t.detach().reshape(-1)
    size = flat.numel()
    index = [mix64(7 * i + size) % size for i in range(6)]
    if weight is not None:
        big = (weight.reshape(-1).abs() >= 0.1 * weight.abs().max()).nonzero().reshape(-1).tolist()
        index = [big[i % len(big)] for i in index]
    return dict(name=name, norm=flat.norm().item(), index=index, value=[flat[i].item() for i in index])


def check_transformers(c, w, seqs):
    import transformers
    kind = "Llama" if c["model_type"] == "llama" else "Qwen2"
    config = getattr(transformers, kind + "Config")(**c)
    model = getattr(transformers, kind + "ForCausalLM")(config).eval()
    state = {k: t.detach().float() for k, t in w.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    for s in seqs:
        with torch.no_grad():
            theirs = model(input_ids=torch.tensor([s])).logits[0].double()
        ours = logits_of(w, c, s).detach()
        assert (theirs - ours).abs().max() < 1e-4 * ours.abs().max(), (theirs - ours).abs().max()
    return model


def make_case(name, c):
    seqs = sequences(c["vocab_size"])
    w = {k: weight_of(k, s).requires_grad_() for k, s in shapes(c).items()}
    try:
        model = check_transformers(c, w, seqs)
        print(name, "agrees with transformers")
        if name == "llama3_rope_tied":
            model.to(torch.bfloat16).save_pretrained(os.path.join(HERE, "hf_tiny"))
    except ImportError:
        print(name, "not compared: no transformers")
    z, logp, entropy = head(w, c, seqs, TEMPERATURE)
    loss = sum(unit_of("dlogp", i) * logp[i] + unit_of("dentropy", i) * entropy[i]
               for i in range(len(logp)))
    loss.backward()
    out = dict(name=name, config=c, sequences=seqs, temperature=TEMPERATURE, logit_rows=LOGIT_ROWS,
               logits=z[LOGIT_ROWS].tolist(), logp=logp.tolist(), entropy=entropy.tolist(),
               gradients=[sampled(k, t.grad) for k, t in w.items()])
    optimizer = torch.optim.AdamW(w.values(), **ADAMW)
    steps = []
    for step in range(3):
        optimizer.zero_grad()
        _, logp, _ = head(w, c, seqs, 1.0)
        loss = -logp.mean()
        loss.backward()
        grads = {k: t.grad.clone() for k, t in w.items()} if step == 0 else grads
        total = torch.nn.utils.clip_grad_norm_(w.values(), CLIP)
        optimizer.step()
        steps.append(dict(loss=loss.item(), grad_norm=total.item()))
    out["adamw"] = dict(ADAMW, grad_clip=CLIP, steps=steps,
                        weights=[sampled(k, t, grads[k]) for k, t in w.items()])
    return out


def main():
    os.makedirs(HERE, exist_ok=True)
    cases = [make_case(name, c) for name, c in CASES.items()]
    with open(os.path.join(HERE, "cases.json"), "w") as f:
        json.dump(cases, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
