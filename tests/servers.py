"""Servers for remotes, on the loopback interface alone; each ends with its block."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# It says its url once the bucket is there, and ends when its stdin is closed, also where the tests were killed.
S3_PROGRAM = """
import sys
import boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
url = "http://{}:{}".format(*server.get_host_and_port())
boto3.client("s3", endpoint_url=url).create_bucket(Bucket=sys.argv[1])
print(url, flush=True)
sys.stdin.read()
server.stop()
"""
S3_ACCESS = {  # and nothing of what whoever runs the tests has in files of their own
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}
SSHD = """\
ListenAddress 127.0.0.1:{port}
HostKey "{folder}/host"
AuthorizedKeysFile "{folder}/login.pub"
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
LogLevel ERROR
"""


class UnavailableError(Exception):
    """A server that this machine cannot run, with the reason."""


class S3(NamedTuple):
    """Where a server is, and what the environment of whoever uses it must say."""

    url: str
    environment: dict[str, str]


class Ssh(NamedTuple):
    """Where a server is, and as whom and with which key it lets in."""

    port: int
    user: str
    key: Path


@contextlib.contextmanager
def s3(folder: Path, bucket: str) -> Iterator[S3]:
    """An S3 server that has the bucket; its log is in the folder."""
    empty = folder / "empty"
    empty.touch()
    access = {**S3_ACCESS, "AWS_CONFIG_FILE": str(empty), "AWS_SHARED_CREDENTIALS_FILE": str(empty)}
    command = [sys.executable, "-c", S3_PROGRAM, bucket]
    pipe = subprocess.PIPE
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env={**os.environ, **access}, text=True) as server,
    ):
        try:
            url = server.stdout.readline().strip()
            assert url, (folder / "log").read_text()
            yield S3(url, access)
        finally:
            server.kill()


@contextlib.contextmanager
def ssh(folder: Path) -> Iterator[Ssh]:
    """OpenSSH's server with keys of its own in the folder; raises UnavailableError where there is none or it cannot start."""
    program = shutil.which("sshd", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"]))
    if program is None or shutil.which("ssh-keygen") is None:
        raise UnavailableError("no sshd here; Debian has it in openssh-server")
    if os.getuid() == 0:
        with contextlib.suppress(OSError):
            Path("/run/sshd").mkdir(exist_ok=True)  # what a system service makes at boot, and sshd asks for where it runs as root
    for name in ("host", "login"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    said = ""
    for _ in range(5):  # another process may take the port between its choice and its use
        port = free_port()
        (folder / "config").write_text(SSHD.format(port=port, folder=folder))
        with (folder / "log").open("w") as log, subprocess.Popen([program, "-D", "-e", "-f", folder / "config"], stderr=log) as server:
            try:
                if answers(server, port):
                    yield Ssh(port, pwd.getpwuid(os.getuid()).pw_name, folder / "login")
                    return
            finally:
                server.terminate()
        said = (folder / "log").read_text().strip()
    raise UnavailableError(f"sshd does not start here: {said}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(server: subprocess.Popen, port: int, seconds: float = 10) -> bool:
    """Whether an SSH server speaks at the port while the process lives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
            if connection.recv(4) == b"SSH-":
                return server.poll() is None
        time.sleep(0.05)
    return False
