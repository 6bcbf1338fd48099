"""Rows of compare.sh (side, case, threads, JSON; tab-separated) on stdin to a Markdown section on stdout: the best of each side and their ratio."""
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
    folder = sys.argv[1]
    best = {}  # (threads, case, figure) -> {side: tokens/s}
    for line in sys.stdin:
        side, case, threads, text = line.rstrip("\n").split("\t")
        row = json.loads(text)
        for name in ("score_tokens_per_s", "train_tokens_per_s", "tokens_per_s"):
            if row.get(name):
                sides = best.setdefault((threads, case, name), {})
                sides[side] = max(sides.get(side, 0), row[name])
    import torch
    import transformers
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    print("\n## Models against PyTorch, %s" % datetime.date.today())
    print("\n`compare.sh`: %s, %d processors, load %.1f. Model: %s, hidden %s, %s layers, FFN %s, vocabulary %s. PyTorch %s, transformers %s, fp32. One thread in processor time, two in wall time.\n" % (
        cpu_model(), os.cpu_count(), os.getloadavg()[0], c["model_type"], c["hidden_size"], c["num_hidden_layers"], c["intermediate_size"], c["vocab_size"],
        torch.__version__, transformers.__version__))
    print("| threads | case | figure | ours, tokens/s | PyTorch, tokens/s | ratio |")
    print("|---|---|---|---|---|---|")
    what = {"score_tokens_per_s": "log-probs", "train_tokens_per_s": "train step", "tokens_per_s": "decode"}
    for (threads, case, name), sides in best.items():
        ours, peer = sides.get("ours", 0), sides.get("torch", 0)
        print("| %s | %s | %s | %d | %d | %s |" % (threads, case, what[name], ours, peer, "%.2f" % (ours / peer) if peer else "-"))


if __name__ == "__main__":
    main()
