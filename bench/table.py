"""Rows of compare.sh (side, case, JSON; tab-separated) on stdin to a Markdown section on stdout: the best of each side and their ratio."""
import datetime
import json
import os
import platform
import sys


def cpu_model():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    folder, threads = sys.argv[1:3]
    best = {}  # (case, figure) -> {side: tokens/s}
    for line in sys.stdin:
        side, case, text = line.rstrip("\n").split("\t")
        row = json.loads(text)
        for name in ("score_tokens_per_s", "train_tokens_per_s", "tokens_per_s"):
            if row.get(name):
                sides = best.setdefault((case, name), {})
                sides[side] = max(sides.get(side, 0), row[name])
    import torch
    import transformers
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    print("\n## %s: %s, %d processors, %s threads" % (datetime.date.today(), cpu_model(), os.cpu_count(), threads))
    print("\nModel: %s, hidden %s, %s layers, FFN %s, vocabulary %s. PyTorch %s, transformers %s, fp32.\n" % (
        c["model_type"], c["hidden_size"], c["num_hidden_layers"], c["intermediate_size"], c["vocab_size"],
        torch.__version__, transformers.__version__))
    print("| case | figure | ours, tokens/s | PyTorch, tokens/s | ratio |")
    print("|---|---|---|---|---|")
    what = {"score_tokens_per_s": "log-probs", "train_tokens_per_s": "train step", "tokens_per_s": "decode"}
    for (case, name), sides in best.items():
        ours, peer = sides.get("ours", 0), sides.get("torch", 0)
        print("| %s | %s | %d | %d | %s |" % (case, what[name], ours, peer, "%.2f" % (ours / peer) if peer else "-"))


if __name__ == "__main__":
    main()
