"""A flipped bit in each file that may be read on resume. flips.py BIN [--only NAME]"""
import argparse
import fcntl
import glob
import json
import os
import random
import re
import shutil
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

FILE_HEADER, FRAME, FRAME_MAGIC = 64, 32, b"tdr1"  # lib/io/log_frame.h
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def flip(path, at=None, pick=random):
    """One bit of the file, at byte `at` or anywhere."""
    with open(path, "r+b") as f:
        size = f.seek(0, os.SEEK_END)
        at = pick.randrange(size) if at is None else at
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ (1 << pick.randrange(8))]))


def places(segment):
    """{offset: (byte of the record, length)} of a log's segment."""
    with open(segment, "rb") as f:
        content = f.read()
    found, at = {}, FILE_HEADER
    while content[at:at + 4] == FRAME_MAGIC:
        length, = struct.unpack_from("<I", content, at + 4)
        offset, = struct.unpack_from("<q", content, at + 16)
        found[offset] = (at + FRAME, length)
        at += FRAME + length
    return found


def segment_of(run, log, partition=0):
    only, = glob.glob(run.path("run", log, str(partition), "*.seg"))
    return only


def flip_record(run, log, partition, offset, pick, frame=False):
    segment = segment_of(run, log, partition)
    at, length = places(segment)[offset]
    flip(segment, at + (-pick.randrange(1, FRAME) if frame else pick.randrange(length)), pick)


class Bench:
    """Runs that were killed at one place, made once for each place and copied for each case."""

    def __init__(self, tools, where, pick):
        self.tools, self.where, self.pick = tools, where, pick
        self.made, self.copies, self.clean = {}, 0, {}

    def expected(self, spec):
        key = repr(spec)
        if key not in self.clean:
            self.clean[key], _ = runs.undisturbed(self.tools, os.path.join(self.where, "clean"),
                                                  spec)
        return self.clean[key]

    def killed(self, place, spec, condition):
        """A copy of a run that was killed when condition(journal) held."""
        if place not in self.made:
            for i in range(50):
                run = runs.Run(self.tools, os.path.join(self.where, "%s-%d" % (place, i)), spec)
                if run.kill_when(condition):
                    self.made[place] = run
                    break
                run.remove()
            else:
                raise AssertionError("no run was killed at %s" % place)
        self.copies += 1
        folder = os.path.join(self.where, "copy-%d" % self.copies)
        shutil.copytree(self.made[place].folder, folder, ignore=shutil.ignore_patterns("*.sock", "*.sock.weights"))
        return runs.Run(self.tools, folder, spec, make=False)

    def goes_on(self, run):
        """Started again it ends with the digests of an undisturbed run."""
        run.start()
        assert run.wait() == 0, "exit status %d:\n%s" % (run.exit_code(), run.said())
        runs.check_equal(self.expected(run.spec), run.result())
        runs.check_nothing_left(run)

    def stops(self, run, *patterns, status=(1,)):
        """Started again it says each of the patterns and fails; again, the same."""
        for _ in range(2):
            run.start()
            assert run.wait(30) in status, "exit status %d:\n%s" % (run.exit_code(), run.said())
            for pattern in patterns:
                assert re.search(pattern, run.said()), "not said: %s\n%s" % (pattern, run.said())
            assert "Assert" not in run.said() and not sandbox.descendants(), run.said()


def last_is(records, name, **fields):
    records = [r for r in records if r["verdict"] == "accepted" and r["name"] != "BEAT"]
    return bool(records) and records[-1]["name"] == name and \
        all(records[-1][k] == v for k, v in fields.items())


def sft_at_5(bench):
    """Two checkpoints, at 2 and 4; step 5 committed."""
    return bench.killed("sft-5", jobs.sft_spec(), lambda r: last_is(r, "COMMIT", step=5) or
                        last_is(r, "SEAL", round=6))


def newest_two(run):
    folders = [r["folder"] for r in run.journal() if r["name"] == "CHECKPOINT"]
    return [run.path("run", "checkpoints", f) for f in folders[-2:]]


@case
def journal_record(bench):
    """Any record: the first, one in the middle, the last."""
    for which in (0, 0.5, 1):
        run = sft_at_5(bench)
        offsets = sorted(places(segment_of(run, "journal")))
        offset = offsets[int(which * (len(offsets) - 1))]
        flip_record(run, "journal", 0, offset, bench.pick)
        bench.stops(run, r"journal.*damaged at offset %d\b" % offset)


@case
def journal_frame(bench):
    run = sft_at_5(bench)
    offsets = sorted(places(segment_of(run, "journal")))
    flip_record(run, "journal", 0, offsets[3], bench.pick, frame=True)
    bench.stops(run, r"journal.*damaged at offset 3\b")


@case
def journal_files(bench):
    """Headers of the segment, of the marks, of the log, and the marks."""
    for name, size in (("0/*.seg", FILE_HEADER), ("0/marks", None), ("log", None)):
        run = sft_at_5(bench)
        path, = glob.glob(run.path("run", "journal", name))
        flip(path, bench.pick.randrange(size or os.path.getsize(path)), bench.pick)
        bench.stops(run, r"run/journal")


@case
def rollout_files(bench):
    for name, size in (("1/*.seg", FILE_HEADER), ("2/marks", None), ("log", None)):
        run = grpo_sealed(bench)
        path, = glob.glob(run.path("run", "rollouts", name))
        flip(path, bench.pick.randrange(size or os.path.getsize(path)), bench.pick)
        bench.stops(run, r"run/rollouts")


@case
def newest_checkpoint(bench):
    """Each of its files: the one before is used."""
    names = [os.path.basename(p) for p in glob.glob(newest_two(sft_at_5(bench))[1] + "/*")]
    assert "model.safetensors" in names and "manifest.json" in names
    for name in sorted(names):
        run = sft_at_5(bench)
        older, newer = newest_two(run)
        flip(os.path.join(newer, name), pick=bench.pick)
        bench.goes_on(run)
        assert os.path.basename(newer) in run.said(), "%s is not named:\n%s" % (name, run.said())


@case
def newest_checkpoint_gone(bench):
    run = sft_at_5(bench)
    shutil.rmtree(newest_two(run)[1])
    bench.goes_on(run)


@case
def both_checkpoints(bench):
    run = sft_at_5(bench)
    folders = newest_two(run)
    for folder in folders:
        flip(os.path.join(folder, bench.pick.choice(["model.safetensors",
                                                     "optimizer.safetensors"])), pick=bench.pick)
    bench.stops(run, *[os.path.basename(f) for f in folders])


@case
def data_file(bench):
    run = sft_at_5(bench)
    with open(run.path("train.jsonl"), "rb") as f:
        at = f.read().index(b'"response": "') + len(b'"response": "')
    with open(run.path("train.jsonl"), "r+b") as f:  # a digit stays a digit
        f.seek(at)
        digit = f.read(1)
        f.seek(at)
        f.write(bytes([digit[0] ^ 1]))
    bench.stops(run, r"train\.jsonl")


@case
def tokenizer(bench):
    run = sft_at_5(bench)
    flip(run.path("model", "tokenizer.json"), pick=bench.pick)
    bench.stops(run, r"tokenizer\.json", status=(1, 2))


@case
def model_config(bench):
    run = sft_at_5(bench)
    path = run.path("model", "config.json")
    with open(path) as f:
        at = f.read().index("10000")
    flip(path, at + 1, random.Random(0))
    bench.stops(run, r"config\.json", status=(1, 2))


def trained_model(bench):
    base = runs.Run(bench.tools, os.path.join(bench.where, "base"), jobs.sft_spec())
    base.start()
    assert base.wait() == 0
    return base.path("out", "global_step_6", "actor", "huggingface")


def shard(model):
    """The same weights as one shard with an index. Its path."""
    name = "model-00001-of-00001.safetensors"
    with open(os.path.join(model, "model.safetensors"), "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        names = [n for n in json.loads(f.read(size)) if n != "__metadata__"]
    os.rename(os.path.join(model, "model.safetensors"), os.path.join(model, name))
    jobs.write_json(os.path.join(model, "model.safetensors.index.json"),
                    {"metadata": {}, "weight_map": dict.fromkeys(names, name)})
    return os.path.join(model, name)


@case
def model_weights(bench):
    """A job that starts from weights reads them until two checkpoints exist."""
    model = trained_model(bench)
    for place, path in (("load", lambda: os.path.join(model, "model.safetensors")),
                        ("shard", lambda: shard(model))):
        spec = jobs.sft_spec()
        spec["model"]["path"] = model
        spec["tandem"]["init"] = "load"
        weights = path()
        run = bench.killed(place, spec, lambda r: last_is(r, "COMMIT", step=1) or
                           last_is(r, "SEAL", round=2))
        shutil.copyfile(weights, weights + ".good")
        flip(weights, os.path.getsize(weights) // 2, bench.pick)
        bench.stops(run, r"model.*\.safetensors")
        os.replace(weights + ".good", weights)
        run.start()
        assert run.wait() == 0, run.said()


@case
def staged_metrics(bench):
    run = sft_at_5(bench)
    with open(run.path("run", "metrics.staged.json"), "rb") as f:
        at = f.read().index(b"train/loss") + len(b'train/loss": 4')
    with open(run.path("run", "metrics.staged.json"), "r+b") as f:
        f.seek(at)
        f.write(b"7")
    bench.stops(run, r"metrics\.staged\.json")


def grpo_sealed(bench):
    """Round 2 is sealed and not committed."""
    return bench.killed("grpo-sealed", jobs.grpo_spec(), lambda r: last_is(r, "SEAL", round=2))


def grpo_committed(bench):
    """Round 3 is committed, the newest checkpoint is that of step 2."""
    return bench.killed("grpo-committed", jobs.grpo_spec(),
                        lambda r: last_is(r, "COMMIT", step=3) or
                        (last_is(r, "DRAW", to=32) and r[-1]["epoch"] == 1))


def entry_of(run, round_, pick):
    """(partition, offset) of one group of a round."""
    seal, = [r for r in run.journal() if r["name"] == "SEAL" and r["round"] == round_]
    return tuple(pick.choice(seal["entries"])[2:])


@case
def sealed_record(bench):
    """Before COMMIT: the group is generated again and the round sealed again."""
    for frame in (False, True):
        run = grpo_sealed(bench)
        flip_record(run, "rollouts", *entry_of(run, 2, bench.pick), bench.pick, frame)
        run.start()
        assert run.wait() == 0, "exit status %d:\n%s" % (run.exit_code(), run.said())
        journal = run.journal()
        assert [r["round"] for r in journal if r["name"] == "RESEAL"] == [2], "no RESEAL"
        assert [c for c in run.commits()] == bench.expected(run.spec)["commits"], run.commits()


@case
def committed_record(bench):
    """After COMMIT, and needed: the job fails and says where (rule A13)."""
    run = grpo_committed(bench)
    partition, offset = entry_of(run, 3, bench.pick)
    flip_record(run, "rollouts", partition, offset, bench.pick)
    bench.stops(run, r"partition %d" % partition, r"offset %d\b" % offset,
                r"CRC [0-9a-f]{8}.*[0-9a-f]{8}", r"step 2\b")
    end = [r for r in run.journal() if r["name"] == "END"]
    assert [e["outcome"] for e in end] == [runs.FAILED], end


@case
def committed_record_not_needed(bench):
    """A record below every kept checkpoint's rounds is not read for training again."""
    run = grpo_committed(bench)
    flip_record(run, "rollouts", *entry_of(run, 1, bench.pick), bench.pick)
    bench.goes_on(run)


@case
def snapshot(bench):
    """A snapshot is a sealed memfd: nobody, its owner included, can change a bit of it."""
    run = runs.Run(bench.tools, os.path.join(bench.where, "snapshot"), jobs.grpo_spec())

    def memfds():
        found = []
        for pid in run.workers().values():
            for path in glob.glob("/proc/%d/fd/*" % pid):
                try:
                    if os.readlink(path).startswith("/memfd:"):
                        found.append(path)
                except OSError:
                    pass
        return found

    def refused(path):
        """None: still being written, so not sealed and not handed out."""
        with open(path, "r+b", buffering=0) as f:
            if not fcntl.fcntl(f, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
                key = os.fstat(f.fileno()).st_ino
                begun.setdefault(key, time.monotonic())
                return False if time.monotonic() - begun[key] > 2 else None
            f.seek(8192)
            byte = f.read(1)
            f.seek(8192)
            try:
                f.write(bytes([byte[0] ^ 1]))
            except PermissionError:
                return True
        return False

    run.start()
    begun, tried = {}, 0
    while run.exit_code() is None:
        for path in memfds():
            try:
                answer = refused(path)
            except FileNotFoundError:
                continue
            assert answer is not False, "%s can be written" % path
            tried += answer is True
    assert run.exit_code() == 0, run.said()
    assert tried, "no snapshot was seen"
    runs.check_equal(bench.expected(run.spec), run.result())


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    parse.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    args = parse.parse_args()
    where = sandbox.enter()
    bench = Bench(runs.Tools(args.bin), where, random.Random(args.seed))
    print("--seed %d" % args.seed)
    return runs.run_cases({n: CASES[n] for n in args.only or CASES}, bench)


if __name__ == "__main__":
    sys.exit(main())
