"""A Kafka node as a test sees it: deploy/kafka starts it, tests kill it and start it again."""
import os
import re
import shutil
import signal
import subprocess

import sandbox

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/kafka")
END_S = 30
CLUSTER = "c2V2ZXJhbC1ub2Rlcy0wMQ"  # 16 bytes in base64


def installed():
    return subprocess.run([SCRIPT, "installed"], check=False).returncode == 0


def install():
    """Whether it is there then. Before the sandbox, from which nothing can be fetched."""
    return shutil.which("java") and subprocess.run([SCRIPT, "install"], stdout=subprocess.DEVNULL,
                                                   check=False).returncode == 0


class Kafka:
    """One broker, whose data stay in folder however often it is started."""

    def __init__(self, folder, port, host="127.0.0.1", inside=list, settings=()):
        """It takes port + 1, too. host: another one than loopback, where clients reach it;
        inside(argv): the command that runs argv there; settings: lines for its own."""
        self.folder, self.port, self.inside = folder, port, inside
        self.name, self.nodes = os.path.basename(folder), [self]
        self.brokers = "%s:%d" % (host, port)
        self.pid, self.starting, self.env = None, None, dict(os.environ)
        if host != "127.0.0.1":
            controller = "CONTROLLER://127.0.0.1:%d" % (port + 1)
            settings = ["listeners=CLIENTS://0.0.0.0:%d,%s" % (port, controller),
                        "advertised.listeners=CLIENTS://%s,%s" % (self.brokers, controller)]
        if settings:
            self.env["TD_KAFKA_SETTINGS"] = folder + ".settings"
            with open(self.env["TD_KAFKA_SETTINGS"], "w") as f:
                f.writelines(line + "\n" for line in settings)

    def begin(self):
        argv = self.inside([SCRIPT, "start", self.folder, str(self.port)])
        self.starting = subprocess.Popen(argv, stdout=subprocess.PIPE, env=self.env)

    def await_ready(self):
        """Returns when it answers."""
        said = self.starting.communicate()[0].split()
        assert said[:1] == [b"running"], "Kafka in %s did not start" % self.folder
        self.pid = int(said[1])

    def start(self):
        self.begin()
        self.await_ready()

    def alive(self):
        return self.pid is not None and sandbox.exit_code(self.pid) is None

    def wait(self):
        sandbox.wait_for(lambda: not self.alive(), END_S, "the end of Kafka")

    def kill(self):
        sandbox.send(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self):
        sandbox.send(self.pid, signal.SIGTERM)
        self.wait()

    def topics(self, prefix):
        """Names, of PREFIX.NAME. They are those of its folders; what becomes of a deleted topic
        ends in other letters."""
        found = [re.fullmatch(re.escape(prefix) + r"\.(.+)-\d+", n)
                 for n in os.listdir(os.path.join(self.folder, "data"))]
        return sorted({m.group(1) for m in found if m})


class Brokers:
    """Several nodes that are one Kafka: each record is on all, and counts once two of them have it."""

    def __init__(self, folder, ports):
        voters = ",".join("%d@127.0.0.1:%d" % (i, port + 1) for i, port in enumerate(ports, 1))
        common = ["controller.quorum.voters=" + voters, "min.insync.replicas=2",
                  "default.replication.factor=%d" % len(ports)]
        self.nodes = [Kafka("%s-%d" % (folder, i), port, settings=["node.id=%d" % i] + common)
                      for i, port in enumerate(ports, 1)]
        for node in self.nodes:
            node.env["TD_KAFKA_CLUSTER"] = CLUSTER
        self.brokers = ",".join(node.brokers for node in self.nodes)

    def topics(self, prefix):
        return sorted({topic for node in self.nodes for topic in node.topics(prefix)})
