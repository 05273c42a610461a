"""What tools print, read as machines; texts as nvidia-smi, pdsh, kubectl and Slurm write them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.cover.hosts import Completion, Inventory, classes
from envkit.cover.inventory.detect import read_inventory
from envkit.cover.inventory.slurm import expand
from envkit.doctor.host import gpu
from envkit.doctor.host.diagnose import conclude
from envkit.doctor.model import Section
from envkit.ground.errors import UsageError
from tests.unit.cover.fleets import facts
from tests.unit.doctor.machine import machine
from tests.unit.doctor.test_host_gpu import MODULE
from tests.unit.doctor.test_host_gpu import row as smi_row

SMI = """\
name, driver_version, compute_cap, memory.total [MiB]
NVIDIA A100-SXM4-80GB, 535.104.05, 8.0, 81920 MiB
NVIDIA A100-SXM4-80GB, 535.104.05, 8.0, 81920 MiB
"""
LABELS = {
    "kubernetes.io/arch": "arm64",
    "nvidia.com/gpu.product": "NVIDIA-GH200-480GB",
    "nvidia.com/cuda.driver.major": "550",
    "nvidia.com/cuda.driver.minor": "54",
    "nvidia.com/cuda.driver.rev": "15",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
}


def read(text: str, form: str = "auto") -> Inventory:
    return read_inventory(text, facts(), form=form, where="hosts")


def titles(text: str, **given: Any) -> list[str]:
    """Class and hosts of an inventory, one line each."""
    found = classes(read(text), facts(), Completion(**given))
    return [f"{one.title}: {' '.join(one.hosts)}" + (f" x{one.count}" if one.count > 1 else "") for one in found]


def node(name: str, labels: dict[str, str], **status: Any) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def test_nvidia_smi_with_a_head_and_units_is_one_machine() -> None:
    assert titles(SMI) == ["NVIDIA A100-SXM4-80GB (sm_80), driver 535.104.05: host 1"]
    assert read(SMI).form == "nvidia-smi"


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA A100-SXM4-80GB, 535.104.05\nTesla T4, 535.104.05\n",
        "0, Tesla T4, 15 %, 535.104.05, 7.5, GPU-12345678-1234-1234-1234-123456789012\n"
        "1, NVIDIA A100-SXM4-80GB, 535.104.05, 8.0, 535.1, 3 %\n".replace("535.1, 3 %", "00000000:07:00.0, P0"),
        "name,driver_version\nTesla T4,535.104.05\nNVIDIA A100-SXM4-80GB,535.104.05\n",
    ],
    ids=["bare", "many fields without a head", "no units"],
)
def test_rows_without_a_host_are_one_machine_with_all_their_gpus(text: str) -> None:
    [one] = classes(read(text), facts(), Completion())
    assert [card.gpu.capability for card in one.cards] == ["7.5", "8.0"]
    assert (one.driver, one.hosts) == ("535.104.05", ("host 1",))


@pytest.mark.parametrize(
    "text",
    [
        "gpu01: Tesla T4, 535.104.05\ngpu02: Tesla V100-SXM2-32GB, 525.60.13\ngpu02: Tesla V100-SXM2-32GB, 525.60.13\n",
        "gpu01, Tesla T4, 535.104.05\ngpu02, Tesla V100-SXM2-32GB, 525.60.13\n",
        "host, name, driver_version\ngpu01, Tesla T4, 535.104.05\ngpu02, Tesla V100-SXM2-32GB, 525.60.13\n",
        "name,driver_version,hostname\nTesla T4,535.104.05,gpu01\nTesla V100-SXM2-32GB,525.60.13,gpu02\n",
    ],
    ids=["pdsh", "first column", "head", "last column"],
)
def test_a_host_may_stand_before_the_rows_or_among_them(text: str) -> None:
    assert titles(text) == [
        "Tesla V100-SXM2-32GB (sm_70), driver 525.60.13: gpu02",
        "Tesla T4 (sm_75), driver 535.104.05: gpu01",
    ]


def test_every_head_begins_another_machine() -> None:
    text = "name, driver_version\nTesla T4, 535.104.05\nname, driver_version\nTesla T4, 470.82.01\n"
    assert [one.hosts for one in classes(read(text), facts(), Completion())] == [("host 2",), ("host 1",)]


def test_two_drivers_in_one_machine_are_a_fault_with_its_line() -> None:
    with pytest.raises(UsageError) as caught:
        read("Tesla T4, 535.104.05\nTesla T4, 470.82.01\n")
    assert caught.value.message == (
        "hosts, line 2: driver 470.82.01, but earlier rows have 535.104.05: add a column with host names"
    )
    assert caught.value.hint == "nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv"


def test_our_own_csv() -> None:
    text = (
        "# the old hall\nhost,gpus,driver,arch,count\na,4x A100,550.54.15,x86_64,12\n"
        "b,T4;V100,525.60.13,,\nb,A10,525.60.13,,\n"
    )
    assert titles(text) == [
        "V100 (sm_70), T4 (sm_75), A10 (sm_86), driver 525.60.13: b",
        "A100 (sm_80), driver 550.54.15: a x12",
    ]


def test_our_own_json_as_a_list_and_below_hosts() -> None:
    rows = [{"name": "a", "gpu": ["T4", "A100 x4"], "driver": "550.54.15", "count": 3, "arch": "amd64"}]
    expected = ["T4 (sm_75), A100 (sm_80), driver 550.54.15: a x3"]
    assert titles(json.dumps(rows)) == titles(json.dumps({"hosts": rows})) == expected


def test_a_capability_beside_an_unknown_name_is_enough() -> None:
    assert titles('[{"name": "a", "gpu": "Something New", "capability": "sm_90", "driver": "550.54.15"}]') == [
        "Something New (sm_90), driver 550.54.15: a"
    ]


def test_kubernetes_nodes_by_their_labels() -> None:
    newer = {key: value for key, value in LABELS.items() if "cuda.driver" not in key}
    newer |= {"nvidia.com/cuda.driver-version.full": "570.86.15", "kubernetes.io/arch": "amd64"}
    newer |= {"nvidia.com/gpu.product": "NVIDIA-H200"}
    tree = {
        "kind": "List",
        "items": [
            node("old", LABELS, nodeInfo={"osImage": "Ubuntu 22.04.4 LTS"}),
            node("new", newer),
            node("cpu", {}, capacity={"cpu": "8"}),
            node("win", {"kubernetes.io/os": "windows"}),
        ],
    }
    found = read(json.dumps(tree))
    assert found.form == "kubectl"
    assert found.notes == ("nodes without an NVIDIA GPU: 1", "nodes that do not run Linux: 1")
    assert found.hosts[0].os == "Ubuntu 22.04.4 LTS"
    assert titles(json.dumps(tree)) == [
        "NVIDIA-GH200-480GB (sm_90), driver 550.54.15, linux-aarch64: old",
        "NVIDIA-H200 (sm_90), driver 570.86.15: new",
    ]


def test_the_platform_follows_from_a_product_with_an_arm_cpu() -> None:
    rows = "name,gpu,driver\na,NVIDIA GH200 480GB,550.54.15\nb,H100,550.54.15\n"
    assert titles(rows) == [
        "H100 (sm_90), driver 550.54.15: b",
        "NVIDIA GH200 480GB (sm_90), driver 550.54.15, linux-aarch64: a",
    ]
    with pytest.raises(UsageError, match="has an Arm CPU, but the architecture is 'x86_64'"):
        titles("name,gpu,driver,arch\na,GH200,550.54.15,x86_64\n")


def test_a_node_with_gpus_and_without_labels_needs_flags() -> None:
    tree = node("bare", {}, capacity={"nvidia.com/gpu": "8"}, nodeInfo={"architecture": "amd64"})
    with pytest.raises(UsageError, match="hosts, node bare: host 'bare' has no GPU") as caught:
        titles(json.dumps(tree))
    assert caught.value.hint == "--gpu NAME sets it for hosts without a GPU in the inventory"
    assert titles(json.dumps(tree), gpus=("H100",), driver="550.54.15") == ["H100 (sm_90), driver 550.54.15: bare"]


def test_slurm_columns_with_and_without_a_head() -> None:
    rows = "gpu[01-02] gpu:a100:4(S:0-1) ib,driver-535.104.05\nold gpu:4 v100,ib\nlogin (null) (null)\n"
    expected = ["v100 (sm_70), driver 550.54.15: old", "a100 (sm_80), driver 535.104.05: gpu01 gpu02 x2"]
    assert titles(rows, driver="550.54.15") == expected
    assert titles(f"HOSTNAMES GRES AVAIL_FEATURES\n{rows}", driver="550.54.15") == expected
    assert read(rows).notes == ("nodes without a GPU: 1",)


def test_slurm_without_resources_names_the_command() -> None:
    with pytest.raises(UsageError, match="lacks node names or GPUs") as caught:
        read("PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\nall up infinite 2 idle n[1-2]\n")
    assert caught.value.hint == 'sinfo -N -h -o "%n %G %f"'


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ("n1",)),
        ("n[01-03,7],x", ("n01", "n02", "n03", "n7", "x")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
    ],
)
def test_node_lists(text: str, nodes: tuple[str, ...]) -> None:
    assert expand(text) == nodes


def test_a_node_list_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="expands to more than 100000 nodes"):
        expand("n[1-999999999]")


@pytest.mark.parametrize("text", ["n[1-2-3]", "n[5-1]", "n[1-" + "9" * 5000 + "]"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a range of nodes"):
        expand(text)


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "name,gpu,driver\na,A100," + "5" * 200_000, "g: Tesla T4, " + "5" * 200_000]
)
def test_a_cell_that_no_table_has_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="hosts is not an inventory: field larger than field limit"):
        read(text)


def test_unknown_gpus_are_told_with_their_lines_and_what_is_near() -> None:
    with pytest.raises(UsageError) as caught:
        titles("name,gpu,driver\na,RTX 4091,550.54.15\nb,Zorg,550.54.15\nc,A100,abc\n")
    assert caught.value.message == "hosts, line 2: host 'a': unknown GPU 'RTX 4091'"
    assert caught.value.hint is not None
    assert "RTX 4090" in caught.value.hint
    assert "--alias 'RTX 4091'=GPU" in caught.value.hint
    assert [line.partition(" (did")[0] for line in caught.value.details] == [
        "hosts, line 3: host 'b': unknown GPU 'Zorg'",
        "hosts, line 4: host 'c': 'abc' is not a driver version (write a driver version as 550.54.15)",
    ]


def test_an_alias_says_what_a_site_calls_a_gpu() -> None:
    assert titles("n1 gpu:big:8 x\n", driver="550.54.15", aliases={"big": "A100"}) == [
        "A100 (sm_80), driver 550.54.15: n1"
    ]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "hosts has no hosts", "`name,gpu,driver` as the first line"),
        ("hello there\n", "unknown format; it begins with 'hello there'", "--format"),
        ("{broken", "not JSON", "kubectl get nodes -o json"),
        ('{"a": 1}', "is not a list of hosts or output of kubectl, Slurm or envkit doctor", '"driver": "550.54.15"'),
        ('[{"name": "a", "gpuu": "T4"}]', "host 1: unknown field 'gpuu'; did you mean gpu?", "fields: name, gpu"),
        ("name,gpuu\na,T4\n", "line 1: unknown column 'gpuu'; did you mean gpu?", "columns: name, gpu"),
        ("name,gpu\na,T4,x,y\n", "line 2: 4 cells for 2 columns", "fix the lines"),
        ("name,gpu,count\na,T4,8\na,A10,4\n", "line 3: 'a' has count 4, but earlier rows have 8", "fix"),
        ("name,gpu,count\na,T4,many\n", "line 2: 'many' is not a number of machines", "fix the lines"),
        ('{"kind": "List", "items": [{"kind": "Node"}]}', "has no hosts with a GPU", "name,gpu,driver"),
    ],
)
def test_what_is_no_inventory_is_refused_with_the_way_out(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ('[{"name": "a"}]', "csv", "hosts is JSON, not csv"),
        ("name,gpu\na,T4\n", "kubectl", "hosts is not JSON"),
        ("[]", "kubectl", "hosts has no Kubernetes nodes"),
        ("{}", "slurm", "hosts is JSON, not slurm"),
        ("[]", "doctor", "hosts has the schema None; this envkit reads envkit.doctor/1"),
    ],
)
def test_a_form_that_is_given_is_held_to(text: str, form: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(text, form=form)


def refusal(text: str) -> UsageError | None:
    """Why a text is refused, None when it is read."""
    try:
        classes(read(text), facts(), Completion())
    except UsageError as error:
        return error
    return None


def diagnosed(folder: Path, smi: str, **changed: Any) -> str:
    """What `envkit doctor --json` prints on a machine whose nvidia-smi prints this."""
    view = machine(folder, {"/proc/driver/nvidia/version": MODULE} if smi else {}, {"nvidia-smi": smi} if smi else {})
    here = Section(id="system", title="System", facts=(("system", "Ubuntu 22.04.5 LTS, aarch64"),))
    found = conclude((gpu.section(view, facts()), here))
    return json.dumps(found.to_json() | changed)


def test_a_diagnosis_is_one_machine(tmp_path: Path) -> None:
    both = smi_row() + smi_row(index="1", name="Tesla V100-SXM2-16GB")
    assert titles(diagnosed(tmp_path, both)) == [
        "Tesla V100-SXM2-16GB (sm_70), NVIDIA A100-SXM4-40GB (sm_80), driver 535.104.05, linux-aarch64: this machine"
    ]
    assert read(diagnosed(tmp_path, both)).hosts[0].os == "Ubuntu 22.04.5 LTS"


def test_a_diagnosis_without_a_gpu_takes_the_flag(tmp_path: Path) -> None:
    silent = diagnosed(tmp_path, "not a table")
    assert "has no GPU" in str(refusal(silent))
    assert titles(silent, gpus=("A100",)) == ["A100 (sm_80), driver 535.104.05, linux-aarch64: this machine"]


@pytest.mark.parametrize(
    ("smi", "changed", "message"),
    [
        ("", {}, "hosts: envkit doctor found no NVIDIA driver and no GPU on that machine"),
        (None, {"subject": "log"}, "hosts is a diagnosis of 'log', not of a machine ('host')"),
        (None, {"schema": "envkit.doctor/2"},
         "hosts has the schema 'envkit.doctor/2'; this envkit reads envkit.doctor/1"),
        (None, {"sections": 7}, "hosts: envkit doctor found no NVIDIA driver and no GPU on that machine"),
    ],
)  # fmt: skip
def test_a_diagnosis_that_tells_of_no_machine_is_refused(
    tmp_path: Path, smi: str | None, changed: dict[str, Any], message: str
) -> None:
    refused = refusal(diagnosed(tmp_path, smi_row() if smi is None else smi, **changed))
    assert refused is not None
    assert (refused.message, refused.hint) == (message, "envkit doctor --json > FILE, on the machine with the GPUs")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    refused = refusal(text)
    assert refused is None or refused.hint


_KEYS = (
    "schema", "subject", "sections", "facts", "kind", "items", "nodes", "sinfo", "hosts", "name", "gpu", "gres",
    "metadata", "labels", "status", "count", "driver", "features", "nodeInfo", "capacity",
)  # fmt: skip


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(_KEYS), inner, max_size=4), max_leaves=12))  # fmt: skip
def test_any_document_is_read_or_refused(tree: Any) -> None:
    refused = refusal(json.dumps(tree))
    assert refused is None or refused.hint
