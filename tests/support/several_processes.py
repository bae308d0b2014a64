"""`depict` in two processes, started by torchrun."""

import os
import socket
import subprocess
import sys


def torchrun(*words, **options):
    """Run `depict WORDS` in two processes that connect over the loopback interface."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    return subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "depict.cli", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        **options,
    )
