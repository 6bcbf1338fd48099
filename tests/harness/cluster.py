"""A cluster as a test sees it: the daemons and a redis-server as processes of this machine, jobs
submitted by the command, state read over HTTP."""
import contextlib
import fcntl
import glob
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import jobs
import kafka
import runs
import sandbox

TIMERS = {"takeover_ms": 1500, "beat_ms": 300, "member_timeout_ms": 2000}
LEASE_S = 2
PORT_FIRST, PORT_LAST = 20000, 32000  # below those that the system hands out
ENDED = ("succeeded", "failed", "cancelled")
PROGRAMS = ("coordinator", "rollout", "train")
_next_port = PORT_FIRST + os.getpid() * 97 % (PORT_LAST - PORT_FIRST - 500)


def free_port():
    global _next_port
    while True:
        _next_port = PORT_FIRST if _next_port == PORT_LAST else _next_port + 1
        with socket.socket() as s, contextlib.suppress(OSError):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", _next_port))
            return _next_port


def free_port_pair():
    """A free port before another one."""
    port, second = 0, free_port()
    while second != port + 1:
        port, second = second, free_port()
    return port


def free_port_pairs(count):
    ports = []
    while len(ports) < count:
        port = free_port_pair()
        if all(abs(port - other) > 1 for other in ports):
            ports.append(port)
    return ports


def spec_for(kind, train_workers=2):
    """Of a cluster's job: as that of `tandem run` with so many train workers."""
    spec = jobs.sft_spec(train_workers) if kind == "sft" else jobs.grpo_spec(train_workers)
    spec["tandem"]["lease_s"] = LEASE_S
    if kind == "grpo":
        spec["tandem"]["rollout"]["unit_groups"] = 2  # of 16, 8 in a validation: for two members
    return spec


def without_job(saved):
    """What is saved for users but for the job's number, in state.json and hence in its digest."""
    for path, content in saved.items():
        name = os.path.basename(path)
        if name in ("state.json", "manifest.json"):
            saved[path] = json.loads(content)
            if name == "state.json":
                del saved[path]["job"]
            else:
                del saved[path]["files"]["state.json"]
    return saved


def undisturbed(tools, folder, spec):
    """The job by `tandem run`: (result, seconds)."""
    result, seconds = runs.undisturbed(tools, folder, spec)
    without_job(result["saved"])
    return result, seconds


class Daemon:
    """One process of the cluster, as often as it is started."""

    def __init__(self, name, folder, argv, http=None, address=None):
        self.name, self.folder, self.argv = name, folder, argv
        self.http, self.address = http, address
        self.pid, self.starts = None, 0

    def is_a(self, program):
        return self.name.rsplit("-", 1)[0] == program

    def start(self, *arguments):
        self.starts += 1
        with open("%s.%d.log" % (self.folder, self.starts), "wb") as said:
            process = subprocess.Popen(self.argv + list(arguments), stdin=subprocess.DEVNULL, stdout=said,
                                       stderr=subprocess.STDOUT)
        process.returncode = 0  # reaped by sandbox.reap, not by subprocess
        self.pid = process.pid

    def said(self, start=None):
        with open("%s.%d.log" % (self.folder, start or self.starts), errors="replace") as f:
            return f.read()

    def said_all(self):
        return "".join("--- %s, start %d\n%s" % (self.name, i, self.said(i))
                       for i in range(1, self.starts + 1))

    def exit_code(self):
        return sandbox.exit_code(self.pid)

    def alive(self):
        return self.pid is not None and self.exit_code() is None

    def wait(self, seconds=10):
        sandbox.wait_for(lambda: self.exit_code() is not None, seconds, "the end of " + self.name)
        return self.exit_code()

    def kill(self):
        sandbox.send(self.pid, signal.SIGKILL)
        self.wait()

    def get(self, path):
        """(status, text)"""
        try:
            with urllib.request.urlopen("http://%s%s" % (self.http, path), timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def json(self, path):
        status, text = self.get(path)
        return json.loads(text) if status == 200 else None


def start_all(servers):
    """Nodes of a Kafka become ready only together, and before those that need them."""
    nodes = [s for s in servers if isinstance(s, kafka.Kafka)]
    for node in nodes:
        node.begin()
    for node in nodes:
        node.await_ready()
    for s in servers:
        if s not in nodes:
            s.start()


class Job(runs.Run):
    """A job's folder, and what the cluster makes of it."""

    def __init__(self, cluster, folder, spec):
        super().__init__(cluster.tools, folder, spec)
        self.cluster, self.id = cluster, None

    def begin(self, command, *arguments):
        """A command in the job's folder, whose answer is waited for elsewhere: its process."""
        argv = [self.cluster.tools.tandem, command, "--address", self.cluster.addresses,
                *map(str, arguments)]
        with open(self.path(command), "wb") as said:
            process = subprocess.Popen(argv, cwd=self.folder, stdin=subprocess.DEVNULL,
                                       stdout=said, stderr=subprocess.STDOUT)
        process.returncode = 0  # reaped by sandbox.reap, not by subprocess
        return process.pid

    def said(self, command):
        with open(self.path(command)) as f:
            return f.read()

    def begin_submit(self, *arguments):
        self.pid = self.begin("submit", "-f", "job.yaml", *arguments)

    def submitted(self):
        """Whether the answer is there."""
        code = self.exit_code()
        if code is not None and self.id is None:
            said = self.said("submit")
            assert code == 0, "submit: exit status %d: %s" % (code, said)
            self.id = int(re.search(r"^job (\d+) submitted$", said, re.M).group(1))
        return self.id is not None

    def submit(self, *arguments):
        self.begin_submit(*arguments)
        sandbox.wait_for(self.submitted, 60, "an answer to submit")
        return self

    def journal(self):
        return [r for r in self.cluster.journal() if r.get("job") == self.id]

    def rollouts(self):
        return []  # deleted with the job's end

    def shared(self, *parts):
        return self.cluster.path("shared", "jobs", str(self.id), *parts)

    def metrics(self):
        with open(self.shared("metrics.jsonl")) as f:
            return runs.comparable_metrics(f)

    def saved(self):
        return without_job(super().saved())

    def steps(self):
        commits = self.commits()
        return commits[-1][0] if commits else -1

    def state(self):
        """As the leader tells it; None: no coordinator leads."""
        found = self.cluster.ask("/api/v1/jobs/%d" % self.id)
        return found and found["state"]

    def waits_for(self):
        return (self.cluster.ask("/api/v1/jobs/%d" % self.id) or {}).get("waits_for", "")

    def wait_end(self, seconds=60, watch=None):
        """Its state then."""
        def ended():
            if watch:
                watch()
            state = self.state()
            return state if state in ENDED else None
        return sandbox.wait_for(ended, seconds, "the end of job %d" % self.id)


class Cluster:
    def __init__(self, tools, folder, coordinators=2, rollout=2, train=1, train_workers=2,
                 redis=True, kafka=None, **settings):
        """kafka: has its logs, named after the folder; it may have others', too."""
        self.tools, self.folder, self.made = tools, folder, 0
        self.kafka, self.prefix = kafka, os.path.basename(folder)
        self.settings = settings
        self.train_workers = train_workers
        os.makedirs(folder)
        self.daemons = {}
        if redis:
            self._add_redis()
        addresses = ["127.0.0.1:%d" % free_port() for _ in range(coordinators)]
        for program, count in zip(PROGRAMS, (coordinators, rollout, train)):
            for i in range(count):
                self._add(program, i, addresses)
        self.addresses = ",".join(addresses)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    # ---- settings ----

    def _add_redis(self):
        argv = ["redis-server", "--port", "0", "--unixsocket", self.path("redis.sock"), "--dir",
                self.folder, "--save", "", "--appendonly", "no"]
        self.daemons["redis"] = Daemon("redis", self.path("redis"), argv)

    def _log(self):
        if self.kafka:
            return {"kind": "kafka", "brokers": self.kafka.brokers, "prefix": self.prefix,
                    "partitions": 2}
        return {"kind": "file", "folder": self.path("records"), "partitions": 2}

    def _add(self, program, i, addresses):
        name = "%s-%d" % (program, i)
        http = "127.0.0.1:%d" % free_port()
        settings = {
            "dir": self.path(name), "http": http, "shared_dir": self.path("shared"),
            "log": self._log(),
            "redis": {"address": "unix:" + self.path("redis.sock"), "timeout_ms": 500},
            "timers": TIMERS}
        if program == "coordinator":
            settings["listen"] = addresses[i]
        else:
            settings.update(coordinators=addresses, threads=1,
                            workers=self.train_workers if program == "train" else 1)
        settings.update(self.settings)
        jobs.write_json(self.path(name + ".yaml"), settings)
        argv = [os.path.join(self.tools.bin_dir, "tandem-" + program), "-f",
                self.path(name + ".yaml")]
        address = addresses[i] if program == "coordinator" else None
        self.daemons[name] = Daemon(name, self.path(name), argv, http, address)

    # ---- processes ----

    def of(self, program):
        return [d for d in self.daemons.values() if d.is_a(program)]

    def servers(self):
        """All that run, first what others need."""
        return (self.kafka.nodes if self.kafka else []) + list(self.daemons.values())

    def start(self):
        start_all([d for d in self.servers() if not d.alive()])
        return self

    def up(self):
        """Started, and a leader knows every member."""
        self.start()
        members = len(self.of("rollout")) + len(self.of("train"))
        sandbox.wait_for(lambda: len((self.ask("/api/v1/members") or {}).get("members", ())) ==
                         members, 20, "a leader that knows %d members" % members)
        return self

    def stop(self, seconds=15):
        """All daemons, as a user does; nothing of them is left."""
        running = [d for d in self.daemons.values() if d.alive()]
        for d in running:
            sandbox.send(d.pid, signal.SIGTERM)
        for d in running:
            code = d.wait(seconds)
            assert code == 0, "%s: exit status %d" % (d.name, code)
        nodes = {n.pid for n in self.kafka.nodes} if self.kafka else ()

        def left():
            return [p for p in sandbox.descendants() if p.pid not in nodes]
        sandbox.wait_for(lambda: not left(), 5, "the end of %s" % left())

    def kill_all(self):
        """All servers and workers, at once."""
        while any(d.alive() for d in self.servers()) or self.all_workers():
            for pid in [d.pid for d in self.servers() if d.alive()] + self.all_workers():
                sandbox.send(pid, signal.SIGKILL)

    def said_all(self):
        return "".join(d.said_all() for d in self.daemons.values())

    def told_all(self):
        """For a failure: what daemons said, and say of themselves."""
        told = [self.said_all()]
        for d in self.daemons.values():
            for page in ("jobs", "members", "status") if d.http and d.alive() else ():
                with contextlib.suppress(OSError):
                    status, text = d.get("/api/v1/" + page)
                    told += ["--- %s %s: %s" % (d.name, page, text)] if status == 200 else []
        return "\n".join(told)

    def workers(self, name):
        """{seat, such as train-0: pid} of a controller's run directory."""
        found, known = {}, set()
        for process in sandbox.descendants():  # parents first
            if process.argv and process.argv[0].endswith("tandem-worker"):
                known.add(process.pid)
                if process.parent in known:
                    continue  # the leak check of a sanitizer
                path = process.argv[process.argv.index("--socket") + 1]
                if path.startswith(self.path(name) + "/"):
                    found[os.path.basename(path)[:-len(".sock")]] = process.pid
        return found

    def all_workers(self):
        return [pid for d in self.of("rollout") + self.of("train")
                for pid in self.workers(d.name).values()]

    def sockets(self):
        """Of workers."""
        return [os.path.join(folder, name) for d in self.of("rollout") + self.of("train")
                for folder, _, names in os.walk(d.folder) for name in names
                if name.endswith((".sock", ".sock.weights"))]

    @contextlib.contextmanager
    def no_append(self):
        """While this is held nobody is inside an append to any file log."""
        files = []
        for folder, _, names in os.walk(self.path("records")):
            files += [open(os.path.join(folder, n), "r+b") for n in names if n == "lock"]
        for f in files:
            fcntl.flock(f, fcntl.LOCK_EX)
        try:
            yield
        finally:
            for f in files:
                f.close()

    def pause(self, daemon):
        """SIGSTOP while it is inside no append, which would hold everybody up."""
        with self.no_append():
            if not sandbox.send(daemon.pid, signal.SIGSTOP):
                return
            sandbox.wait_for(lambda: sandbox.Process(daemon.pid).state == "T", 5, "a stopped process")

    # ---- what it says ----

    def leader(self):
        """None: no coordinator leads, or its answer is late."""
        for d in self.of("coordinator"):
            with contextlib.suppress(OSError):
                if d.alive() and sandbox.Process(d.pid).state != "T" and \
                        re.search(r"^tandem_leader 1$", d.get("/metrics")[1], re.M):
                    return d
        return None

    def wait_leader(self, seconds=20):
        return sandbox.wait_for(self.leader, seconds, "a leader")

    def ask(self, path):
        """JSON from the leader; None: nobody leads."""
        with contextlib.suppress(OSError):
            leader = self.leader()
            return leader and leader.json(path)
        return None

    def tandem(self, command, *arguments, cwd=None, address=None):
        """(exit status, stdout, stderr)"""
        done = subprocess.run([self.tools.tandem, command, "--address", address or self.addresses,
                               *map(str, arguments)], cwd=cwd, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                              check=False)
        runs.check_said(done.stderr.decode())
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def journal(self):
        if self.kafka:
            return self.tools.dump("journal", self.kafka.brokers, self.prefix + ".journal")
        return self.tools.dump("journal", self.path("records", "journal"))

    def logs(self):
        """Their names."""
        if self.kafka:
            return self.kafka.topics(self.prefix)
        return os.listdir(self.path("records"))

    # ---- jobs ----

    def job(self, spec):
        """Written, not submitted."""
        self.made += 1
        return Job(self, self.path("job-%d" % self.made), spec)

    def left_of_jobs(self):
        """What must go with a job: its workers, sockets, shared memory, rollout logs and the
        answers of its validations."""
        left = ["worker %d" % pid for pid in self.all_workers()] + self.sockets()
        with contextlib.suppress(FileNotFoundError):
            left += [n for n in self.logs() if n.startswith("rollout-")]
        left += glob.glob(self.path("shared", "jobs", "*", "validation"))
        return left + (os.listdir("/dev/shm") if sandbox.isolated() else [])

    def wait_given_up(self, seconds=30):
        """No job runs: every controller knows, one that was stopped, too, and writes no file of any."""
        def all_know():
            with contextlib.suppress(OSError):
                return all(d.json("/api/v1/status")["state"] == "no job"
                           for d in self.of("rollout") + self.of("train") if d.alive())
        sandbox.wait_for(all_know, seconds, "controllers without a job")

    def check_clear(self, seconds=10):
        """No job runs: within that time nothing of any is left."""
        until = time.monotonic() + seconds
        while self.left_of_jobs():
            assert time.monotonic() < until, "left after %g s: %s" % (seconds, self.left_of_jobs())
            time.sleep(0.02)

    def check_quiet(self):
        """What daemons said has no trace of a sanitizer, an assertion, or a rejected record."""
        runs.check_said(self.said_all())
        wrong = [r for r in self.journal() if r["verdict"] == "rejected"]
        assert not wrong, "a leader appended what is rejected: %s" % wrong


def run_cases(cases, bench):
    """As runs.run_cases; a failing case prints what its daemons said. bench.clusters: all of them."""
    def told(function):
        def call(b):
            b.clusters = []
            try:
                function(b)
            except Exception:
                for c in b.clusters:
                    print(c.told_all())
                raise
            finally:
                sandbox.end_all()
        return call
    return runs.run_cases({n: told(f) for n, f in cases.items()}, bench)
