"""A Kafka node as a test sees it: deploy/kafka starts it, tests kill it and start it again."""
import os
import re
import shutil
import signal
import subprocess

import sandbox

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/kafka")
END_S = 30


def installed():
    return subprocess.run([SCRIPT, "installed"], check=False).returncode == 0


def install():
    """Whether it is there then. Before the sandbox, from which nothing can be fetched."""
    return shutil.which("java") and subprocess.run([SCRIPT, "install"], stdout=subprocess.DEVNULL,
                                                   check=False).returncode == 0


class Kafka:
    """One broker, whose data stay in folder however often it is started."""
    name = "kafka"

    def __init__(self, folder, port, host="127.0.0.1", inside=list):
        """It takes port + 1, too. host: another one than loopback, where clients reach it;
        inside(argv): the command that runs argv there."""
        self.folder, self.port, self.inside = folder, port, inside
        self.brokers = "%s:%d" % (host, port)
        self.pid, self.env = None, dict(os.environ)
        if host != "127.0.0.1":
            self.env["TD_KAFKA_SETTINGS"] = folder + ".settings"
            with open(self.env["TD_KAFKA_SETTINGS"], "w") as f:
                controller = "CONTROLLER://127.0.0.1:%d" % (port + 1)
                f.write("listeners=CLIENTS://0.0.0.0:%d,%s\n" % (port, controller) +
                        "advertised.listeners=CLIENTS://%s,%s\n" % (self.brokers, controller))

    def start(self):
        """Returns when it answers."""
        argv = self.inside([SCRIPT, "start", self.folder, str(self.port)])
        said = subprocess.run(argv, check=True, stdout=subprocess.PIPE, env=self.env).stdout
        self.pid = int(said.split()[1])

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
