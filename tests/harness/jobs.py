"""Small jobs: a model of 2 layers and 32 channels with random weights, sums to learn, 6 rounds."""
import json
import os
import random

STEPS = 6
ROWS = 480  # of an SFT step
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 98, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 1,
    "pad_token_id": 0, "rope_theta": 10000.0, "hidden_act": "silu", "initializer_range": 0.2,
    "torch_dtype": "float32",
}


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f)


def write_lines(path, rows):
    with open(path, "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def write_model(folder):
    """config.json and a tokenizer of one token a byte."""
    os.makedirs(folder)
    special = ["<pad>", "<eos>"]
    bytes_ = [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [dict(flags, id=i, content=s, special=True)
                         for i, s in enumerate(special)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {s: i for i, s in enumerate(special + bytes_)}, "merges": []},
    }
    write_json(os.path.join(folder, "config.json"), MODEL)
    write_json(os.path.join(folder, "tokenizer.json"), tokenizer)


def sums(n, seed):
    pick = random.Random(seed)
    for _ in range(n):
        a, b = pick.randrange(30), pick.randrange(30)
        yield "%d+%d=" % (a, b), str(a + b)


def sft_spec(train_workers=1):
    return {
        "data": {"train_files": "train.jsonl", "train_batch_size": ROWS, "max_length": 16,
                 "use_dynamic_bsz": True, "max_token_len_per_gpu": 256},
        "model": {"path": "model"},
        "optim": {"lr": 0.003, "lr_warmup_steps": 2, "weight_decay": 0.01},
        "trainer": {"total_epochs": 1, "save_freq": 3, "default_local_dir": "out"},
        "tandem": {"kind": "sft", "init": "random", "seed": 3, "run_dir": "run", "threads": 1,
                   "train": {"workers": train_workers}, "checkpoint": {"every": 2},
                   "worker_timeout_s": 2, "start_timeout_s": 5, "worker_grace_s": 20},
    }


def grpo_spec(train_workers=1, rollout_workers=1):
    return {
        "data": {"train_files": "train.jsonl", "val_files": "val.jsonl", "train_batch_size": 16,
                 "max_prompt_length": 16, "max_response_length": 24},
        "actor_rollout_ref": {
            "model": {"path": "model"},
            "actor": {"ppo_mini_batch_size": 8, "use_dynamic_bsz": True, "use_kl_loss": True,
                      "kl_loss_coef": 0.01, "entropy_coeff": 0.01,
                      "ppo_max_token_len_per_gpu": 1024, "optim": {"lr": 0.001}},
            "rollout": {"n": 4, "temperature": 1.0, "max_num_seqs": 32,
                        "max_num_batched_tokens": 1024},
        },
        "trainer": {"total_training_steps": STEPS, "total_epochs": 3, "test_freq": 3,
                    "save_freq": 3, "val_before_train": True, "default_local_dir": "out",
                    "validation_data_dir": "out/answers", "rollout_data_dir": "out/samples"},
        "tandem": {"kind": "grpo", "init": "random", "seed": 3, "run_dir": "run", "threads": 1,
                   "train": {"workers": train_workers},
                   "rollout": {"workers": rollout_workers, "unit_groups": 4},
                   "checkpoint": {"every": 2}, "worker_timeout_s": 2, "start_timeout_s": 5, "worker_grace_s": 20,
                   "rewards": [{"data_source": "sum", "grader": "regex",
                                "pattern": "[0-3]"}]},
    }


def write_job(folder, spec):
    """Model, data and job.yaml (JSON is YAML); all paths in it are relative to folder."""
    os.makedirs(folder)
    write_model(os.path.join(folder, "model"))
    if spec["tandem"]["kind"] == "sft":
        rows = [{"prompt": p, "response": r} for p, r in sums(ROWS * STEPS, 1)]
    else:
        rows = [row(p, r) for p, r in sums(40, 1)]
        write_lines(os.path.join(folder, "val.jsonl"), [row(p, r) for p, r in sums(8, 2)])
    write_lines(os.path.join(folder, "train.jsonl"), rows)
    write_json(os.path.join(folder, "job.yaml"), spec)


def row(prompt, answer):
    return {"prompt": prompt, "data_source": "sum",
            "reward_model": {"style": "rule", "ground_truth": answer}, "extra_info": {}}
