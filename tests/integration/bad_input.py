"""What is wrong with a job or its machine is said in one clear line, with the right exit status.
bad_input.py BIN [--only NAME]"""
import argparse
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

OK, FAILED, USAGE = 0, 1, 2
NOBODY = 65534
NO_ROOM = r"No space left on device|File too large"
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Bench:
    """A fresh job for each use."""

    def __init__(self, tools, where):
        self.tools, self.where, self.made, self.clean = tools, where, 0, {}

    def job(self, spec=None, folder=None):
        self.made += 1
        return runs.Run(self.tools, folder or os.path.join(self.where, "job-%d" % self.made),
                        spec or jobs.sft_spec())

    def expected(self, spec):
        key = repr(spec)
        if key not in self.clean:
            self.clean[key], _ = runs.undisturbed(self.tools, os.path.join(self.where, "clean"),
                                                  spec)
        return self.clean[key]

    def trained_model(self):
        run = self.job()
        run.start()
        assert run.wait() == 0, run.said()
        return run.path("out", "global_step_6", "actor", "huggingface")


def tandem(run, command, *arguments, user=None, limits=None, name="job.yaml", program=None):
    """(exit status, what it said on stderr)."""
    def prepare():
        if limits:
            resource.setrlimit(*limits)
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
    done = subprocess.run([program or run.tools.tandem, command, "-f", name, *arguments], cwd=run.folder,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=prepare,
                          timeout=60, check=False)
    said = done.stderr.decode()
    runs.check_said(said)
    return done.returncode, said


def refused(run, status, *patterns, commands=("run",), lines=1, **how):
    """Says all the patterns, in that many lines on stderr, and leaves no process."""
    for command in commands:
        code, said = tandem(run, command, **how)
        assert code == status, "%s: exit status %d, not %d:\n%s" % (command, code, status, said)
        assert len(said.splitlines()) == lines, "%s: not %d lines:\n%s" % (command, lines, said)
        for pattern in patterns:
            assert re.search(pattern, said), "%s: not said: %s\n%s" % (command, pattern, said)
        sandbox.wait_for(lambda: not sandbox.descendants(), 5, "the end of all processes")


BOTH = ("run", "validate")


def write_yaml(run, text):
    with open(run.path("job.yaml"), "w") as f:
        f.write(text)


# ---- the job file ----

@case
def broken_yaml(bench):
    run = bench.job()
    write_yaml(run, "tandem:\n  kind: sft\n  seed: [1\ndata: x\n")
    refused(run, USAGE, r"job\.yaml:\d+", commands=BOTH)


@case
def not_a_map(bench):
    run = bench.job()
    write_yaml(run, "- 1\n")
    refused(run, USAGE, r"job\.yaml", commands=BOTH)


@case
def unknown_key(bench):
    run = bench.job()
    write_yaml(run, "tandem: {kind: sft}\ndata:\n  train_files: train.jsonl\n"
                    "  train_batch_sise: 8\nmodel: {path: model}\n")
    refused(run, USAGE, r"job\.yaml:4:.*train_batch_sise.*train_batch_size", commands=BOTH)


@case
def wrong_type(bench):
    spec = jobs.sft_spec()
    spec["data"]["train_batch_size"] = "many"
    refused(bench.job(spec), USAGE, r"job\.yaml:\d+:.*data\.train_batch_size", commands=BOTH)


@case
def several_errors(bench):
    spec = jobs.sft_spec()
    spec["data"]["train_batch_size"] = "many"
    spec["optim"]["lr"] = True
    spec["tandem"]["seeed"] = 1
    refused(bench.job(spec), USAGE, "train_batch_size", "optim.lr", "seeed", lines=3)
    refused(bench.job(spec), USAGE, "3 errors", commands=("validate",), lines=4)


@case
def refused_key(bench):
    spec = jobs.grpo_spec()
    spec["algorithm"] = {"adv_estimator": "gae"}
    refused(bench.job(spec), USAGE, r"adv_estimator", commands=BOTH)


@case
def bad_override(bench):
    code, said = tandem(bench.job(), "run", "tandem.sede=1")
    assert code == USAGE and "tandem.seed" in said, said


@case
def missing_job_file(bench):
    refused(bench.job(), USAGE, r"nothing\.yaml", commands=BOTH, name="nothing.yaml")


# ---- the files it names ----

@case
def missing_data(bench):
    run = bench.job()
    os.remove(run.path("train.jsonl"))
    refused(run, FAILED, r"train\.jsonl: No such file")


@case
def missing_model(bench):
    run = bench.job()
    shutil.rmtree(run.path("model"))
    refused(run, FAILED, r"model/\w+\.json: No such file")


@case
def bad_row(bench):
    for line, what in (('{"prompt": "1+1=", "response": ', r""),
                       ('{"prompt": "1+1="}', r"response"),
                       ('{"prompt": 5, "response": "2"}', r"prompt"),
                       ('{"prompt": "1+1=", "response": "\udcff"}', r"")):
        run = bench.job()
        with open(run.path("train.jsonl"), errors="surrogateescape") as f:
            rows = f.read().splitlines()
        rows[41] = line
        with open(run.path("train.jsonl"), "w", errors="surrogateescape") as f:
            f.write("\n".join(rows) + "\n")
        refused(run, USAGE, r"train\.jsonl:42\b.*" + what)


@case
def no_grader(bench):
    spec = jobs.grpo_spec()
    spec["tandem"]["rewards"][0]["data_source"] = "other"
    refused(bench.job(spec), USAGE, r'sum', r"tandem\.rewards")


@case
def bad_pattern(bench):
    spec = jobs.grpo_spec()
    spec["tandem"]["rewards"][0]["pattern"] = "("
    refused(bench.job(spec), USAGE, r"tandem\.rewards\[0\]")


def load_spec(model):
    spec = jobs.sft_spec()
    spec["model"]["path"] = model
    spec["tandem"]["init"] = "load"
    return spec


@case
def truncated_weights(bench):
    model = bench.trained_model()
    path = os.path.join(model, "model.safetensors")
    for size in (os.path.getsize(path) - 100, 1000, 5, 0):
        with open(path, "r+b") as f:
            f.truncate(size)
        run = bench.job(load_spec(model))
        code, said = tandem(run, "run")
        assert code in (FAILED, USAGE) and "model.safetensors" in said, said
        assert len(said.splitlines()) == 1, said


@case
def wrong_shapes(bench):
    model = bench.trained_model()
    jobs.write_json(os.path.join(model, "config.json"), dict(jobs.MODEL, intermediate_size=96))
    code, said = tandem(bench.job(load_spec(model)), "run")
    assert code in (FAILED, USAGE) and re.search(r"model\.safetensors.*shape", said), said


@case
def not_finite_weights(bench):
    """I11: a NaN in the weights reaches no version."""
    model = bench.trained_model()
    path = os.path.join(model, "model.safetensors")
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) - 4)
        f.write(struct.pack("<f", float("nan")))
    code, said = tandem(bench.job(load_spec(model)), "run")
    assert code in (FAILED, USAGE) and re.search(r"finite|NaN", said), said


@case
def weights_missing(bench):
    spec = load_spec("model")
    code, said = tandem(bench.job(spec), "run")
    assert code in (FAILED, USAGE) and "model.safetensors" in said, said
    assert len(said.splitlines()) == 1, said


# ---- the machine ----

@case
def long_path(bench):
    spec = jobs.sft_spec()
    spec["tandem"]["run_dir"] = "/".join(["a" * 40] * 4)
    refused(bench.job(spec), USAGE, r"tandem\.run_dir", r"has [12]\d\d bytes, at most 107")


@case
def no_permission(bench):
    """As nobody; who is not root is nobody's equal in the system's own places."""
    if not sandbox.is_root():
        spec = jobs.sft_spec()
        spec["tandem"]["run_dir"] = "/etc/run"
        refused(bench.job(spec), FAILED, r"/etc/run: Permission denied")
        spec = jobs.sft_spec()
        spec["data"]["train_files"] = "/etc/shadow"
        refused(bench.job(spec), FAILED, r"/etc/shadow: Permission denied")
        return
    os.chmod(bench.where, 0o755)
    run = bench.job()
    # The build may lie where nobody may not look.
    nobody = {"user": NOBODY, "program": shutil.copy(run.tools.tandem, bench.where)}
    refused(run, FAILED, r"run: Permission denied", **nobody)  # the folder is root's
    run = bench.job()
    os.chown(run.folder, NOBODY, NOBODY)
    os.chmod(run.path("train.jsonl"), 0o600)
    refused(run, FAILED, r"train\.jsonl: Permission denied", **nobody)


def small_disk(disk, kib):
    """A tmpfs with that much room. Removing ballast makes room."""
    os.makedirs(disk)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", disk], check=True)
    with open(os.path.join(disk, "ballast"), "wb") as f:
        os.posix_fallocate(f.fileno(), 0, (50 * 1024 - kib) * 1024)


@case
def disk_full(bench):
    """At many sizes, so that it is full at many places: one line, and with room it goes on."""
    if not sandbox.isolated():
        print("        (no mounts here)")
        return
    for spec, sizes in ((jobs.sft_spec(), (16, 64, 128, 256, 400, 600, 800)),
                        (jobs.grpo_spec(), (100, 300, 500, 800))):
        plain = json.loads(json.dumps(spec))
        spec["tandem"]["run_dir"] = "disk/run"
        for key, value in spec["trainer"].items():
            if str(value).split("/")[0] == "out":
                spec["trainer"][key] = "disk/" + value
        full = 0
        for size in sizes:
            run = bench.job(spec)
            disk = run.path("disk")
            small_disk(disk, size)
            code, said = tandem(run, "run")
            if code:
                full += 1
                assert code == FAILED, "%d KiB: exit status %d:\n%s" % (size, code, said)
                assert re.search(NO_ROOM, said), "%d KiB:\n%s" % (size, said)
                os.remove(os.path.join(disk, "ballast"))
                code, said = tandem(run, "run")
            assert code == OK, "%d KiB, then room: exit status %d:\n%s" % (size, code, said)
            os.symlink("disk/run", run.path("run"))
            os.symlink("disk/out", run.path("out"))
            runs.check_equal(bench.expected(plain), run.result())
            subprocess.run(["umount", disk], check=True)
        assert full >= 3, "the disk was full %d times only" % full


@case
def file_size_limit(bench):
    """The same without mounts: RLIMIT_FSIZE."""
    for size in (1000, 20000, 60000, 150000):
        run = bench.job()
        code, said = tandem(run, "run", limits=(resource.RLIMIT_FSIZE, (size, size)))
        assert code == FAILED, "%d bytes: exit status %d:\n%s" % (size, code, said)
        assert re.search(NO_ROOM, said), "%d bytes:\n%s" % (size, said)
        code, said = tandem(run, "run")
        assert code == OK, "%d bytes, then room: exit status %d:\n%s" % (size, code, said)
        runs.check_equal(bench.expected(run.spec), run.result())


@case
def no_worker_program(bench):
    for content in (None, "#!/bin/sh\nexit 3\n"):
        folder = os.path.join(bench.where, "bin-%s" % bool(content))
        os.makedirs(folder)
        shutil.copy(bench.tools.tandem, folder)
        shutil.copy(os.path.join(bench.tools.bin_dir, "log_dump"), folder)
        if content:
            with open(os.path.join(folder, "tandem-worker"), "w") as f:
                f.write(content)
            os.chmod(f.name, 0o755)
        run = runs.Run(runs.Tools(folder), os.path.join(folder, "job"), jobs.sft_spec())
        code, said = tandem(run, "run")
        assert code == FAILED and re.search(r"tandem run: .*worker train-0", said), said


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    args = parse.parse_args()
    bench = Bench(runs.Tools(args.bin), sandbox.enter())
    return runs.run_cases({n: CASES[n] for n in args.only or CASES}, bench)


if __name__ == "__main__":
    sys.exit(main())
