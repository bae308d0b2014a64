"""`depict` in several processes, which connect over the loopback interface."""

import os
import socket
import subprocess
import sys

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def torchrun(*words, processes=2, program=("-m", "depict.cli"), **options):
    """Run a program, `depict` by default, with these words in processes that torchrun starts."""
    launcher = ["torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", str(free_port())]
    return subprocess.run(
        [sys.executable, "-m", *launcher, *map(str, (*program, *words))],
        capture_output=True,
        text=True,
        timeout=300,
        env=ENVIRONMENT,
        **options,
    )


def start_processes(*commands):
    """Start one process for each command, without torchrun, which would end the others when one has ended."""
    shared = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, command in enumerate(commands)
    ]


def free_port():
    """A port that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
