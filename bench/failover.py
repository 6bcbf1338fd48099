#!/usr/bin/env python3
"""How long a cluster of this machine needs after a kill -9, each measured from the kill:

  rollout      a rollout controller that holds groups: until all of them are leased to, or came from, another one
  coordinator  the leader: until the standby has sent its first orders, and until the job made a step
  worker       a rollout worker with a unit: until its controller generates again, on a new worker
  train        the train controller, started again at once: until the job made a step, with the same workers

failover.py [--bin build/release/bin] [--trials 3] [--timers fast|production] [--only NAME ...] [--dir D]

`tandem up` starts a cluster (two coordinators, two rollout controllers of a worker, one train controller of two workers)
on a file log below --dir (a new folder by default), and replaces what was killed. State is read over HTTP, every 10 ms.
fast means up --fast, and 2 s for leases and silent workers instead of the defaults of 10 s. Prints progress on stderr
and a line of JSON for each kind, in seconds."""
import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "harness"))
import jobs  # noqa: E402

POLL_S, DEADLINE_S, QUIET_STEPS = 0.01, 120, 1


class Void(Exception):
    """A trial that measured nothing."""


def wait(condition, what, seconds=DEADLINE_S):
    until = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > until:
            raise TimeoutError("waited %d s for %s" % (seconds, what))
        time.sleep(POLL_S)


def get(http, path):
    """None: no answer, or another one than 200."""
    with contextlib.suppress(OSError, ValueError):
        with urllib.request.urlopen("http://%s%s" % (http, path), timeout=2) as answer:
            return answer.read().decode()
    return None


def get_json(http, path):
    text = get(http, path)
    return json.loads(text) if text else None


def metric(http, name):
    found = re.search(r"^%s (\S+)$" % name, get(http, "/metrics") or "", re.M)
    return float(found.group(1)) if found else 0


def process_exists(pid):
    """Not a zombie."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as f:
            return f.read().rsplit(b")", 1)[1].split()[0] != b"Z"
    except OSError:
        return False


class Cluster:
    def __init__(self, bin_dir, folder, timers):
        self.tandem, self.folder, self.fast = os.path.join(bin_dir, "tandem"), folder, timers == "fast"
        self.dir = os.path.join(folder, "c")
        self.job = None

    def run(self, *arguments, cwd=None):
        done = subprocess.run([self.tandem, *arguments, "--dir", self.dir], cwd=cwd, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise RuntimeError("tandem %s: %s" % (arguments[0], done.stdout.decode()))
        return done.stdout.decode()

    def up(self):
        self.run("up", *(["--fast"] if self.fast else []), "--threads", "1", "--timeout", "120")

    def processes(self, kind):
        with open(os.path.join(self.dir, "cluster.json")) as f:
            return [p for p in json.load(f)["processes"] if p["name"].rsplit("-", 1)[0] == kind]

    def kill(self, pid):
        """The time of it."""
        now = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        wait(lambda: not process_exists(pid), "the end of process %d" % pid, 10)
        return now

    def leader(self):
        for p in self.processes("coordinator"):
            if metric(p["http"], "tandem_leader") == 1:
                return p
        return None

    def ask(self, path):
        leader = self.leader()
        return leader and get_json(leader["http"], path)

    def step(self, http=None):
        path = "/api/v1/jobs/%s" % self.job
        found = get_json(http, path) if http else self.ask(path)
        if found and found["state"] not in ("running", "queued"):
            raise RuntimeError("the job has ended: %s" % found)
        return found["step"] if found else -1

    def groups(self, http):
        """{(data epoch, index): (state, member)} of the open round; None: no answer."""
        found = get_json(http, "/api/v1/jobs/%s/groups" % self.job)
        return found and {(g["data_epoch"], g["index"]): (g["state"], g["member"]) for g in found["groups"]}

    def workers(self, name):
        """Process ids of a controller's workers."""
        found, mine = [], os.path.join(self.dir, name) + "/"
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    words = f.read().decode(errors="replace").split("\0")
                if words[0].endswith("tandem-worker") and any(w.startswith(mine) for w in words) and \
                        process_exists(int(pid)):
                    found.append(int(pid))
        return sorted(found)

    def settle(self):
        """Everything is there and the job goes on."""
        self.up()
        first = wait(lambda: max(self.step(), 0), "a step")
        wait(lambda: self.step() > first + QUIET_STEPS, "the job to go on")

    def holding(self):
        """(leader, rollout process, its member, the groups leased to it), once one holds some."""
        leader = wait(self.leader, "a leader")
        rollout = self.processes("rollout")

        def look():
            for p in rollout:
                status = get_json(p["http"], "/api/v1/status")
                groups = status and self.groups(leader["http"])
                mine = [g for g, at in (groups or {}).items() if at == ("leased", status["member"])]
                if mine and status["waits_for"].startswith("its workers to generate"):
                    return leader, p, status["member"], mine
            return None
        return wait(look, "a rollout controller that holds groups")


# ---- the kinds ----


def rollout(c):
    leader, p, member, held = c.holding()
    began = c.kill(p["pid"])
    # What it published before is of no interest.
    held = [g for g in held if (c.groups(leader["http"]) or {}).get(g) == ("leased", member)]
    if not held:
        raise Void("its groups had arrived")

    def elsewhere():
        groups = c.groups(leader["http"])
        return groups is not None and all(groups.get(g, ("arrived", ""))[0] == "arrived" or
                                          groups[g][0] == "leased" and groups[g][1] != member for g in held)
    wait(elsewhere, "the groups elsewhere")
    return {"groups leased elsewhere": time.monotonic() - began}


def coordinator(c):
    leader = wait(c.leader, "a leader")
    standby = next(p for p in c.processes("coordinator") if p["name"] != leader["name"])
    orders, step = metric(standby["http"], "tandem_orders_total"), c.step(leader["http"])
    began = c.kill(leader["pid"])
    wait(lambda: metric(standby["http"], "tandem_orders_total") > orders, "orders of the standby")
    ordered = time.monotonic() - began
    wait(lambda: c.step(standby["http"]) > step, "a step")
    return {"first orders of the standby": ordered, "next step": time.monotonic() - began}


def worker(c):
    # A controller starts a worker that dies again and again less and less soon, and gives the job up at last: a new
    # one has seen none die.
    for p in c.processes("rollout"):
        c.kill(p["pid"])
    c.settle()
    _, p, _, _ = c.holding()
    victims = c.workers(p["name"])
    if not victims:
        raise Void("it has no worker")
    began = c.kill(victims[0])
    state = {}

    def again():
        status = get_json(p["http"], "/api/v1/status")
        new = state.get("new") or [w for w in c.workers(p["name"]) if w not in victims]
        state["new"] = new
        return new and status and status["waits_for"].startswith("its workers to generate")
    wait(again, "a unit on a new worker")
    return {"its unit on a new worker": time.monotonic() - began}


def train(c):
    p, = c.processes("train")
    leader, before = wait(c.leader, "a leader"), c.workers(p["name"])
    step = c.step(leader["http"])
    began = c.kill(p["pid"])
    restart = subprocess.Popen([c.tandem, "up", "--dir", c.dir], stdout=subprocess.DEVNULL)
    wait(lambda: c.step(leader["http"]) > step, "a step")
    took = time.monotonic() - began
    restart.wait()
    if c.workers(p["name"]) != before:
        raise Void("the workers are others: %s, %s" % (before, c.workers(p["name"])))
    return {"next step by the same workers": took}


KINDS = {f.__name__: f for f in (rollout, worker, train, coordinator)}


# ---- the run ----


def write_job(folder, timers):
    """One that generates for a second or so, trains as long, and does not end."""
    spec = jobs.grpo_spec(2)
    spec["data"].update(max_response_length=400)
    del spec["data"]["val_files"]
    actor = spec["actor_rollout_ref"]["actor"]
    actor["ppo_max_token_len_per_gpu"] = 4096
    actor["optim"]["lr"] = 0
    spec["actor_rollout_ref"]["rollout"].update(n=8, max_num_seqs=64, max_num_batched_tokens=4096)
    spec["trainer"] = {"total_epochs": 1000000, "total_training_steps": 1000000, "save_freq": -1,
                       "test_freq": -1, "val_before_train": False, "default_local_dir": "out"}
    tandem = spec["tandem"]
    for key in ("worker_timeout_s", "start_timeout_s", "worker_grace_s"):
        del tandem[key]
    tandem["checkpoint"]["every"] = 50
    if timers == "fast":
        tandem.update(lease_s=2, worker_timeout_s=2)
    jobs.MODEL.update(max_position_embeddings=512, hidden_size=64, num_hidden_layers=4, intermediate_size=192)
    jobs.write_job(folder, spec)


def percentile(values, p):
    values = sorted(values)
    return round(values[min(len(values) - 1, int(p / 100 * len(values)))], 3)


def load():
    return float(open("/proc/loadavg").read().split()[0])


def measure(c, kind, trials, timers):
    took, loads, done, void = {}, [], 0, 0
    while done < trials and void < 2 * trials + 10:
        c.settle()
        loads.append(load())
        try:
            found = KINDS[kind](c)
        except Void as e:
            void += 1
            print("%s: void: %s" % (kind, e), file=sys.stderr)
            continue
        done += 1
        for what, seconds in found.items():
            took.setdefault(what, []).append(seconds)
        print("%s, %s timers, trial %d of %d: %s" % (
            kind, timers, done, trials, ", ".join("%s %.3f s" % x for x in found.items())), file=sys.stderr)
    for what, v in took.items():
        print(json.dumps({"kind": kind, "timers": timers, "until": what, "trials": len(v), "void": void,
                          "p50": percentile(v, 50), "p99": percentile(v, 99), "min": percentile(v, 0),
                          "load": round(sum(loads) / len(loads), 1)}), flush=True)


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--bin", default=os.path.join(HERE, "..", "build", "release", "bin"))
    parse.add_argument("--trials", type=int, default=3)
    parse.add_argument("--timers", choices=("fast", "production"), default="fast")
    parse.add_argument("--only", action="append", choices=sorted(KINDS))
    parse.add_argument("--dir")
    args = parse.parse_args()
    folder = args.dir or tempfile.mkdtemp(prefix="tandem-failover-")
    c = Cluster(os.path.abspath(args.bin), folder, args.timers)
    try:
        c.up()
        write_job(os.path.join(folder, "job"), args.timers)
        c.job = c.run("submit", "-f", "job.yaml", cwd=os.path.join(folder, "job")).split()[1]
        for kind in args.only or KINDS:
            measure(c, kind, args.trials, args.timers)
    finally:
        c.run("down")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
