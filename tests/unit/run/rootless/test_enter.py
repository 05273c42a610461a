"""The part of enter.py that needs no namespaces."""

import pytest

from envkit.run.rootless import enter


def test_a_run_that_uses_every_folder_for_mounts_is_an_error_of_the_system() -> None:
    argv = ["bwrap", *(f"{folder}/data" for folder in enter._MOUNT_ROOTS)]
    with pytest.raises(OSError, match="the run needs one of /mnt, /media, /srv, /home"):
        enter._moved(argv, "/var/cache/run", ("merged",))
