"""Commands against a real cluster of one machine, with its own Redis and the file log: jobs end
with the digests of `tandem run`, also when daemons die or the cluster goes down on the way.
cluster_cli.py BIN [--only NAME]"""
import argparse
import json
import os
import re
import signal
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import kafka  # noqa: E402
import local_cluster  # noqa: E402
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

USAGE, NOT_FOUND, UNAVAILABLE, CANCELLED, INTERRUPTED = 2, 3, 4, 6, 130
TRAIN_WORKERS = 2
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Bench:
    def __init__(self, tools, where):
        self.tools, self.where, self.made, self.clean = tools, where, 0, {}

    def folder(self, spec):
        self.made += 1
        folder = os.path.join(self.where, "job-%d" % self.made)
        jobs.write_job(folder, spec)
        return folder

    def cluster(self, *specs):
        """specs: of jobs whose end is compared; `tandem run` has them first."""
        for spec in specs:
            self.expected(spec)
        self.made += 1
        return local_cluster.Cluster(self.tools, self.where, "c%d" % self.made)

    def expected(self, spec):
        """(step, weights, full state) of the end of `tandem run`."""
        key = repr(spec)
        if key not in self.clean:
            result, _ = runs.undisturbed(self.tools, os.path.join(self.where, "clean"), spec)
            self.clean[key] = result["commits"][-1]
        return self.clean[key]


def long_spec():
    """A job that does not end by itself while a test looks at it."""
    spec = jobs.grpo_spec(TRAIN_WORKERS)
    spec["trainer"].update(total_training_steps=100000, total_epochs=100000, save_freq=-1,
                           test_freq=-1, validation_data_dir=None, rollout_data_dir=None)
    return spec


def check_ended(bench, cluster, job, spec):
    found = cluster.json("get", "job", job)
    assert found["state"] == "SUCCEEDED", found
    ended = (found["step"], found["weight_digest"], found["state_digest"])
    assert ended == bench.expected(spec), "%s, `tandem run` ends with %s" % (
        ended, bench.expected(spec))
    with open(os.path.join(found["folder"], "metrics.jsonl")) as f:
        assert found["metrics"] == json.loads(f.readlines()[-1]), found["metrics"]


def await_step(cluster, job, step):
    sandbox.wait_for(lambda: cluster.json("get", "job", job)["step"] >= step, 120,
                     "step %d of job %s" % (step, job))


@case
def jobs_end_as_run_ends(bench):
    specs = [jobs.sft_spec(TRAIN_WORKERS), jobs.grpo_spec(TRAIN_WORKERS)]
    cluster = bench.cluster(*specs)
    cluster.up()
    for spec in specs:
        folder = bench.folder(spec)
        out = cluster.say("submit", "-f", "job.yaml", "--watch", cwd=folder).out
        job = out.split()[1]
        assert out.startswith("job %s submitted\n" % job) and "SUCCEEDED: step 6/6" in out, out
        check_ended(bench, cluster, job, spec)
        assert cluster.json("get", "rounds", job)["rounds"][-1]["state"] == "committed"
        text = cluster.say("describe", "job", job).out
        assert cluster.json("get", "job", job)["weight_digest"] in text, text
        assert os.path.isdir(os.path.join(folder, "out", "global_step_6")), os.listdir(folder)
    assert [j["state"] for j in cluster.json("get", "jobs")["jobs"]] == ["SUCCEEDED"] * 2
    kinds = sorted(m["kind"] for m in cluster.json("get", "controllers")["members"]
                   if m["kind"] != "coordinator")
    assert kinds == ["rollout", "rollout", "train"], kinds
    cluster.down()
    cluster.check_nothing_left()
    # What has ended is known after a restart.
    assert "was up" not in cluster.up().out
    assert cluster.say("wait", "1").out.startswith("job 1 SUCCEEDED")
    cluster.down("--purge")
    assert not os.path.exists(cluster.dir)


@case
def down_and_up_goes_on(bench):
    spec = jobs.grpo_spec(TRAIN_WORKERS)
    cluster = bench.cluster(spec)
    cluster.up()
    job = cluster.submit(bench.folder(spec))
    await_step(cluster, job, 1)
    cluster.down()
    cluster.check_nothing_left()
    cluster.say("get", "jobs", code=UNAVAILABLE)
    cluster.up()
    cluster.say("wait", job)
    check_ended(bench, cluster, job, spec)
    cluster.down()
    cluster.check_nothing_left()


@case
def dead_daemons_are_started(bench):
    spec = jobs.grpo_spec(TRAIN_WORKERS)
    cluster = bench.cluster(spec)
    cluster.up()
    leader, before = cluster.leader(), cluster.processes()
    job = cluster.submit(bench.folder(spec))
    wait = cluster.start("wait", job)
    await_step(cluster, job, 1)
    victims = (leader, "rollout-1", "redis")
    cluster.kill(*victims)
    said = wait.end()
    assert said.code == 0 and said.out.startswith("job %s SUCCEEDED" % job), said
    check_ended(bench, cluster, job, spec)
    cluster.up()
    after = cluster.processes()
    for name, pid in before.items():
        assert (after[name] == pid) == (name not in victims), (before, after)
    assert len(cluster.json("get", "jobs")["jobs"]) == 1
    cluster.down()
    cluster.check_nothing_left()


@case
def on_kafka(bench):
    """The logs in Apache Kafka, where it is installed; what is in it outlives `down`."""
    if not kafka.installed():
        print("Kafka is not installed: deploy/kafka install")
        return
    spec = jobs.grpo_spec(TRAIN_WORKERS)
    cluster = bench.cluster(spec)
    cluster.up("--kafka")
    job = cluster.submit(bench.folder(spec))
    await_step(cluster, job, 1)
    cluster.down()
    cluster.check_nothing_left()
    cluster.up()
    cluster.say("wait", job)
    check_ended(bench, cluster, job, spec)
    cluster.down()
    cluster.check_nothing_left()


def lists_workers(cluster):
    """Each worker process is listed as ready, by the leader and by the page of its controller."""
    there = sorted(p.pid for p in sandbox.descendants()
                   if p.argv and p.argv[0].endswith("tandem-worker"))
    members = [m for m in cluster.json("get", "workers")["members"] if m["workers"]]
    pids = [w["pid"] for m in members for w in m["worker_states"] if w["state"] == "ready"]
    shown = []
    for m in members:
        with urllib.request.urlopen("http://%s/api/v1/status" % m["http"], timeout=5) as answer:
            shown += [w["pid"] for w in json.load(answer)["workers"]]
    lines = cluster.say("get", "workers").out.splitlines()
    return there and there == sorted(pids) == sorted(shown) and len(lines) == len(pids) + 1


def shows_waits(cluster, job):
    """The leader's first page has the job's open round and gang, and says of each group that is out
    which member it waits for and since when."""
    http = next(line.split()[-1] for line in cluster.say("up").out.splitlines() if " leads " in line)
    members = {m["id"] for m in cluster.json("get", "controllers")["members"]}
    with urllib.request.urlopen(http, timeout=5) as answer:
        page = answer.read().decode()
    assert all("<h2>%s<" % part in page
               for part in ("jobs", "members", "rounds", "gangs", "open groups")), page
    with urllib.request.urlopen("%s/api/v1/jobs/%s/groups" % (http, job), timeout=5) as answer:
        groups = json.load(answer)["groups"]
    out = [g for g in groups if g["state"] == "leased"]
    told = all(g["waits_for"] and g["waits_since_ms"] >= 0 and g["member"] in members for g in out)
    rounds = page.split("<h2>rounds<")[1].split("<h2>")[0]
    whom = re.search(r"<td>[^<]+, on ([0-9a-f]{16})<", rounds)
    return out and told and whom and whom.group(1) in members


@case
def cancel(bench):
    cluster = bench.cluster()
    cluster.up()
    job = cluster.submit(bench.folder(long_spec()))
    watch = cluster.start("watch", job)
    await_step(cluster, job, 1)
    sandbox.wait_for(lambda: lists_workers(cluster), 20, "every worker in `get workers`")
    sandbox.wait_for(lambda: shows_waits(cluster, job), 20, "whom rounds and groups wait for")
    cluster.say("wait", job, "--wait-timeout", "0.5", code=124)
    assert cluster.say("cancel", job).out == "job %s cancelled\n" % job
    assert watch.end().code == CANCELLED, watch.end()
    cluster.say("wait", job, code=CANCELLED)
    assert cluster.say("cancel", job).out == "job %s cancelled\n" % job  # once more is the same
    cluster.down()
    cluster.check_nothing_left()


@case
def mistakes(bench):
    cluster = bench.cluster()
    cluster.say("get", "jobs", code=UNAVAILABLE)
    cluster.up()
    cluster.say("get", "job", "7", code=NOT_FOUND)
    cluster.say("cancel", "7", code=NOT_FOUND)
    folder = bench.folder(jobs.sft_spec(TRAIN_WORKERS))
    os.unlink(os.path.join(folder, "train.jsonl"))
    said = cluster.say("submit", "-f", "job.yaml", cwd=folder, code=USAGE)
    assert "train.jsonl" in said.err, said
    # The same request is the same job.
    folder = bench.folder(jobs.sft_spec(TRAIN_WORKERS))
    first = cluster.submit(folder, "--request-id", "same")
    assert cluster.submit(folder, "--request-id", "same") == first
    said = cluster.say("submit", "-f", "job.yaml", "--request-id", "same", "tandem.seed=99", cwd=folder,
                       code=USAGE)
    assert "is job " + first in said.err and "tandem.seed: " in said.err, said
    cluster.say("wait", first)
    assert len(cluster.json("get", "jobs")["jobs"]) == 1
    cluster.down()
    cluster.check_nothing_left()


@case
def interrupted_up_leaves_nothing(bench):
    cluster = bench.cluster()
    up = cluster.start("up", "--rollout", "3")
    sandbox.wait_for(lambda: os.path.exists(os.path.join(cluster.dir, "cluster.json")), 30,
                     "cluster.json")
    sandbox.send(up.pid, signal.SIGINT)
    said = up.end()
    if said.code == INTERRUPTED:  # else it was up already
        cluster.check_nothing_left()
    cluster.down()
    cluster.check_nothing_left()


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    args = parse.parse_args()
    missing = local_cluster.missing(args.bin)
    if missing:
        print("not built: %s" % ", ".join(missing))
        return local_cluster.SKIPPED
    where = sandbox.enter()
    bench = Bench(runs.Tools(args.bin), where)
    return runs.run_cases({n: CASES[n] for n in args.only or CASES}, bench)


if __name__ == "__main__":
    sys.exit(main())
