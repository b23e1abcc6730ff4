"""A real Slurm on this machine: munged, slurmctld and a slurmd for each of four nodes, on the loopback.

Everything it writes is in a folder of its own, with a key of its own, and all of it is gone when it is left.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench_runner.processes import Process, process_table, read_process, send_signal

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
NODES = ("n1", "n2", "n3", "n4")
START_SECONDS = 60.0
SBIN = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
REQUIRED = "slurm" in os.environ.get("BENCH_RUNNER_REQUIRE", "").split(",")

CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MailProg=/bin/true
{nodes}
PartitionName=all Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""


def unavailable(reason: str) -> None:
    """Skip; fail where BENCH_RUNNER_REQUIRE says that this machine can."""
    if REQUIRED:
        pytest.fail(f"BENCH_RUNNER_REQUIRE names slurm, but {reason}")
    pytest.skip(reason)


class SlurmCluster:
    """The running daemons.  ``environment`` is what Slurm's commands need to find this cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = free_ports(1 + len(NODES))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": SBIN, "MASTER_ADDR": "127.0.0.1"}

    def start(self) -> None:
        (self.folder / "state").mkdir()
        (self.folder / "tmp").mkdir()  # for the jobs: what a node that is killed leaves goes with the rest
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge.key").chmod(0o600)
        places = ("key-file=munge.key", "socket=munge.socket", "log-file=munged.log", "pid-file=munged.pid")
        options = [f"--{name}={self.folder / file}" for name, file in (place.split("=") for place in places)]
        self._daemon("munged", "munged", "--foreground", f"--seed-file={self.folder / 'munged.seed'}", *options)
        wait_for(lambda: (self.folder / "munge.socket").exists(), "munged does not start")
        nodes = "\n".join(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
            for name, port in zip(NODES, self._ports[1:], strict=True)
        )
        text = CONFIGURATION.format(folder=self.folder, ports=self._ports, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        self._daemon("slurmctld", "slurmctld", "-D")
        for name in NODES:
            self.start_node(name)
        self.wait_until_idle()

    def start_node(self, name: str) -> None:
        self._daemon(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """As when a machine loses its power: slurmd and everything that it has started is gone at once."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        for process in self._of_node(name):
            send_signal(process, signal.SIGKILL)

    def _of_node(self, name: str) -> list[Process]:
        """The node's job processes, and in front of them the slurmstepd of each step, which has left slurmd's tree."""
        wanted = (f"SLURMD_NODENAME={name}".encode(), f"SLURM_CONF={self.folder}/slurm.conf".encode())
        jobs = [process for process in process_table() if all(word in environ(process) for word in wanted)]
        parents = [read_process(pid) for pid in {process.parent for process in jobs}]
        return [*(p for p in parents if p is not None and p.name.startswith("slurmstepd")), *jobs]

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def wait_until_idle(self) -> None:
        """All four nodes there, and nothing running on them."""
        wait_for(lambda: self.ask("sinfo", "-h", "-o", "%T %D").split() == ["idle", "4"], "the nodes do not come up")

    def stop(self) -> None:
        doomed = [process for name in NODES for process in self._of_node(name)]
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in doomed:
            send_signal(process, signal.SIGKILL)


def environ(process: Process) -> list[bytes]:
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def wait_for(condition: object, otherwise: str) -> None:
    ends = time.monotonic() + START_SECONDS
    while not condition():  # type: ignore[operator]
        if time.monotonic() > ends:
            raise TimeoutError(otherwise)
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def slurm() -> Iterator[SlurmCluster]:
    """The cluster, or a skip with the reason."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=SBIN) is None]
    if missing:
        unavailable(f"Slurm is not installed here ({', '.join(missing)} missing; Debian: slurm-wlm munge)")
    if os.geteuid() != 0:
        unavailable("Slurm's daemons need root")
    folder = Path(tempfile.mkdtemp(prefix="bench-runner-slurm-"))
    folder.chmod(0o755)  # munge's socket must be reachable by name for everybody
    cluster = SlurmCluster(folder)
    try:
        try:
            cluster.start()
        except (OSError, TimeoutError) as error:
            logs = "".join(path.read_text(errors="replace")[-500:] for path in folder.glob("*.out"))
            unavailable(f"Slurm does not start here: {error}: {logs}")
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
