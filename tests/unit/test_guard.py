import os
import socket
import subprocess
import sys

import pytest


def test_a_unit_test_cannot_start_a_process() -> None:
    with pytest.raises(pytest.fail.Exception, match="starts no process"):
        subprocess.run([sys.executable, "-c", "pass"], check=False)
    with pytest.raises(pytest.fail.Exception, match=r"os\.system"):
        os.system("true")


def test_a_unit_test_cannot_reach_a_socket() -> None:
    with socket.socket() as probe, pytest.raises(pytest.fail.Exception, match=r"socket\.connect"):
        probe.connect(("127.0.0.1", 9))
    with pytest.raises(pytest.fail.Exception, match=r"socket\.getaddrinfo"):
        socket.create_connection(("localhost", 9), timeout=1)
