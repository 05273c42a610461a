"""Inventories as a real Slurm prints them, in each of its forms."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.cover.hosts import Completion, classes
from envkit.cover.inventory.detect import read_inventory
from envkit.ground.errors import UsageError
from tests.support.plans import facts
from tests.world.slurm import Cluster, cluster

pytestmark = [pytest.mark.engine, pytest.mark.long]
# Machines that Slurm is told of and never reaches.
NODES = """\
GresTypes=gpu
NodeName=gpu[01-03] NodeAddr=127.0.0.1 Gres=gpu:a100:4 Feature=ib,driver-535.104.05 State=DOWN
NodeName=old NodeAddr=127.0.0.1 Gres=gpu:8 Feature=v100 State=DOWN
NodeName=mix NodeAddr=127.0.0.1 Gres=gpu:t4:1,gpu:tesla_v100:2 State=DOWN"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm"), NODES) as made:
        yield made


@pytest.mark.parametrize(
    "argv",
    [("sinfo", "-N", "-h", "-o", "%n %G %f"), ("sinfo", "-o", "%N %G %f")],
    ids=["a line per node", "node lists with a head"],
)
def test_every_form_of_sinfo_tells_the_same_machines(place: Cluster, argv: tuple[str, ...], tmp_path: Path) -> None:
    said = place.run(*argv, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    inventory = read_inventory(said.stdout, facts())
    assert (inventory.form, inventory.notes) == ("slurm", ("nodes without a GPU: 1",))
    assert [(one.title, one.hosts) for one in classes(inventory, facts(), Completion(driver="550.54.15"))] == [
        ("v100 (sm_70), driver 550.54.15", ("old",)),
        ("tesla_v100 (sm_70), t4 (sm_75), driver 550.54.15", ("mix",)),
        ("a100 (sm_80), driver 535.104.05", ("gpu01", "gpu02", "gpu03")),
    ]


def test_the_json_of_slurm_names_the_table(place: Cluster, tmp_path: Path) -> None:
    said = place.run("sinfo", "--json", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    with pytest.raises(UsageError, match="is Slurm's JSON") as caught:
        read_inventory(said.stdout, facts())
    assert caught.value.hint == 'sinfo -N -h -o "%n %G %f"'
