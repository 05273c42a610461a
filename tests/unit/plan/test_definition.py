from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground import records
from envkit.ground.errors import Faults, UsageError
from envkit.plan import definition
from envkit.plan.definition import Constraints, Definition, load, parse, shipped
from envkit.plan.model import Smoke

HEAD = "schema: envkit.image/1\ntitle: A title\n"
NOWHERE = Path("/nonexistent")


def read(body: str, folder: Path = NOWHERE) -> Definition:
    return parse(HEAD + body, where="x/train.yaml", folder=folder)


def faults(text: str, folder: Path = NOWHERE) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parse(text, where="train.yaml", folder=folder)
    return [caught.value.message, *caught.value.details]


def test_defaults() -> None:
    found = read("")
    assert found.name == "train"
    assert (found.template, found.flavor, found.user, found.workdir) == (
        "miniconda",
        "runtime",
        "1000:1000",
        "/workspace",
    )
    assert found.companions == ("numpy", "torchvision")
    assert found.smoke == Smoke()
    assert found.cmd is None


def test_every_key_is_read() -> None:
    found = read(
        """
request: {torch: 2.7.*, cuda: 12.10, python: 3.10, gpus: [A100, "RTX 4090"], os: debian12, source: pytorch}
template: wheels-mine
flavor: devel
companions: [torchvision, torchaudio]
features: [jupyter, dali]
conda: [scipy >=1.11]
pip: [einops]
apt: [git, "less=590-2"]
rpm: [git]
env: {OMP_NUM_THREADS: "8", B: no}
labels: {com.example.team: vision}
user: "2000"
workdir: /srv/app
entrypoint: [tool, --flag]
command: [a, a]
smoke: {shm_mb: 64, pin_memory: false, compile: absent}
"""
    )
    assert dict(found.request) == {
        "torch": "2.7.*",
        "cuda": "12.10",
        "python": "3.10",
        "gpu": ("A100", "RTX 4090"),
        "os": "debian12",
        "source": "pytorch",
    }
    assert found.env == (("B", "no"), ("OMP_NUM_THREADS", "8"))
    assert found.cmd == ("a", "a")
    assert found.smoke == Smoke(shm_mb=64, pin_memory=False, compile="absent")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("title: x\n", "train.yaml: schema: missing; write `schema: envkit.image/1`"),
        ("schema: envkit.image/2\ntitle: x\n", "train.yaml: schema: 'envkit.image/2' is not one of envkit.image/1"),
        ("schema: envkit.image/1\n", "train.yaml: title: missing"),
        ("- a\n", "train.yaml: a list is not a mapping"),
        ("", "train.yaml is empty"),
        ("# only a comment\n", "train.yaml is empty"),
        (HEAD + "request:\n", "train.yaml: request: nothing (null) is not a mapping"),
        (
            HEAD + "request: {torch: latest}\n",
            "train.yaml: request.torch: 'latest' is not a version; write an exact version (11.8), a prefix (2.7.*)",
        ),
        (HEAD + "chanels: [x]\n", "train.yaml: chanels: unknown key; did you mean labels?"),
        (HEAD + "reqest: {}\n", "train.yaml: reqest: unknown key; did you mean request?"),
        (HEAD + "request: {cdua: 1}\n", "train.yaml: request.cdua: unknown key; did you mean cuda?"),
        (HEAD + "request: {cuda: '12,8'}\n", "train.yaml: request.cuda: '12,8' is not a version"),
        (HEAD + "request: 12.8\n", "train.yaml: request: '12.8' is not a mapping"),
        (HEAD + "request: {cpu: maybe}\n", "train.yaml: request.cpu: 'maybe' is neither true nor false"),
        (
            HEAD + "request: {max_size: 3}\n",
            "train.yaml: request.max_size: '3' is not a size; write a number and a unit",
        ),
        (HEAD + "request: {max_size: 0GB}\n", "train.yaml: request.max_size: '0GB' allows no download; write 3GB"),
        (HEAD + "request: {supported_only: 1}\n", "train.yaml: request.supported_only: '1' is neither true nor false"),
        (HEAD + "request: {gpus: A100}\n", "train.yaml: request.gpus: 'A100' is not a list"),
        (HEAD + "request: {driver: newest}\n", "train.yaml: request.driver: 'newest' is not a driver version"),
        (HEAD + "request: {platform: win-64}\n", "train.yaml: request.platform: 'win-64' is not one of linux-64"),
        (HEAD + "conda: scipy\n", "train.yaml: conda: 'scipy' is not a list"),
        (HEAD + "conda: [null]\n", "train.yaml: conda[0]: nothing (null) is not a string"),
        (HEAD + "conda: [a, a]\n", "train.yaml: conda[1]: 'a' is listed twice"),
        (HEAD + "conda: [{a: b}]\n", "train.yaml: conda[0]: a mapping is not a string"),
        (
            HEAD + "pip: [torch]\n",
            "train.yaml: pip[0]: 'torch' is chosen by the resolver; constrain torch under request",
        ),
        (HEAD + "env: {A: true}\n", "train.yaml: env.A: is not a string; quote it"),
        (HEAD + "env: {LD_PRELOAD: x}\n", "train.yaml: env.LD_PRELOAD: is not allowed"),
        (HEAD + "env: [A=1]\n", "train.yaml: env: a list is not a mapping"),
        (
            HEAD + "labels: {envkit.plan: x}\n",
            "train.yaml: labels.envkit.plan: has a reserved prefix",
        ),
        (HEAD + "user: root\n", "train.yaml: user: 'root' is not a numeric uid:gid"),
        (HEAD + "workdir: /proc/self/fd/8\n", "train.yaml: workdir: '/proc/self/fd/8' is a system folder"),
        (HEAD + "features: [jupiter]\n", "train.yaml: features[0]: 'jupiter' is not one of jupyter"),
        (HEAD + "flavor: develop\n", "train.yaml: flavor: 'develop' is not one of runtime, devel; did you mean devel?"),
        (HEAD + "template: pixi\n", "train.yaml: template: 'pixi' is not a template name"),
        (HEAD + "template: miniconda/../x\n", "is not a template name"),
        (HEAD + "entrypoint: python -m x\n", "train.yaml: entrypoint: 'python -m x' is not a list of strings"),
        (HEAD + "entrypoint: [conda, run, x]\n", "does not forward signals"),
        (HEAD + "smoke: {shm_mb: 0}\n", "train.yaml: smoke.shm_mb: '0' is not a whole number from 1"),
        (HEAD + "smoke: {shm_mb: 99999999999999999999999999}\n", "is not a whole number"),
        (HEAD + "smoke: {tier: quik}\n", "train.yaml: smoke.tier: 'quik' is not one of quick, standard, deep"),
        (HEAD + "smoke: {teir: quick}\n", "train.yaml: smoke.teir: unknown key; did you mean tier?"),
        (HEAD + "extends: ../../etc/passwd\n", "is neither a shipped image nor a file in this folder"),
        ('schema: envkit.image/1\ntitle: "a\\nRUN id"\n', "train.yaml: title: 'a\\nRUN id' contains the control"),
    ],
)
def test_faults_name_the_place(text: str, expected: str) -> None:
    assert expected in faults(text)[0]


def test_all_faults_come_at_once() -> None:
    found = faults(HEAD + "chanels: []\nrequest: {cuda: x}\nuser: root\nconda: [';']\n")
    assert len(found) == 4


def test_faults_carry_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        read("nope: 1\n")
    assert caught.value.hint == "`envkit help images` lists every key and its meaning"


@pytest.mark.requirement("R1")
@pytest.mark.parametrize(
    "text",
    [
        HEAD + "env: {A: 1, A: 2}\n",
        HEAD + "env: &a {A: x}\nlabels: *a\n",
        HEAD + "command: !!python/object/apply:os.system [id]\n",
        HEAD + "title: again\n",
        HEAD + "---\n",
        HEAD + "env:\n\tA: x\n",
        HEAD + "command: " + "[" * 2000,
        "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        HEAD + "title: \x00\n",
    ],
)
def test_loose_yaml_is_refused(text: str) -> None:
    assert faults(text)[0].startswith("train.yaml:")


def test_many_faults_are_told_in_twenty_lines(tmp_path: Path) -> None:
    keys = "".join(f"k{number}: x\n" for number in range(8000))
    with pytest.raises(UsageError, match="k0: unknown key; known: ") as caught:
        read(keys, tmp_path)
    assert len(caught.value.details) == 21
    assert caught.value.details[-1] == "... and 7979 more"


def test_a_long_spec_is_refused_before_it_is_read(tmp_path: Path) -> None:
    long = "a" * 300
    with pytest.raises(UsageError, match=r"conda\[0\]: 'a+'\.\.\. is longer than 256 characters") as caught:
        read(f"conda: [{long}]\npip: [{long}]\napt: [{long}]\nrpm: [{long}]\nlabels: {{{long}: x}}\n", tmp_path)
    assert len(caught.value.details) == 4


@pytest.mark.requirement("R11")
def test_a_link_out_of_the_folder_is_not_extended(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text("-----BEGIN SECRET-----\n")
    (folder / "parent.yaml").symlink_to(tmp_path / "secret.yaml")
    with pytest.raises(UsageError, match=r"extends: .*/parent.yaml is a link out of") as caught:
        read("extends: parent\n", folder)
    assert "SECRET" not in str(caught.value)


def test_extends_adds_and_replaces(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        HEAD
        + "request: {cuda: 12.6, driver: '560', os: debian12}\nconda: [scipy]\nenv: {A: x, B: x}\nuser: '7'\n"
        + "command: [a]\nsmoke: {shm_mb: 8, num_workers: 1}\n"
    )
    found = read("extends: base\nconda: [scipy, pandas]\nenv: {B: y}\ncommand: []\nsmoke: {shm_mb: 9}\n", tmp_path)
    assert found.conda == ("scipy", "pandas")
    assert found.env == (("A", "x"), ("B", "y"))
    assert (found.user, found.cmd) == ("7", ())
    assert (found.smoke.shm_mb, found.smoke.num_workers) == (9, 1)


def test_a_cpu_child_drops_its_parents_cuda(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD + "request: {cuda: 12.6, driver: '560', gpus: [A100], os: debian12}\n")
    found = read("extends: base\nrequest: {cpu: true}\n", tmp_path)
    assert dict(found.request) == {"cpu": True, "os": "debian12"}
    (tmp_path / "slow.yaml").write_text(HEAD + "request: {cpu: true}\n")
    assert dict(read("extends: slow\nrequest: {cuda: 12.6}\n", tmp_path).request) == {"cuda": "12.6"}


def test_extends_one_level_only(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(HEAD + "extends: default\n")
    assert "one level is allowed" in faults(HEAD + "extends: one\n", tmp_path)[0]


def test_a_fault_of_the_parent_names_the_parent(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD + "user: root\n")
    assert faults(HEAD + "extends: base\n", tmp_path)[0].startswith(f"{tmp_path}/base.yaml: user:")


def test_a_missing_parent() -> None:
    assert "/nonexistent/gone.yaml: no such file" in faults(HEAD + "extends: gone\n")[0]


@pytest.mark.requirement("R3")
def test_unknown_name_lists_the_shipped() -> None:
    with pytest.raises(UsageError, match="unknown image definition 'nope'") as caught:
        load("nope")
    assert "default" in str(caught.value.hint)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_images_are_sound(name: str) -> None:
    found = load(name)
    assert found.name == name
    assert found.where == f"images/{name}.yaml"
    assert parse(HEAD + f"extends: {name}\n", where="x.yaml", folder=NOWHERE).request == found.request


def test_the_promised_images_are_there() -> None:
    wanted = {"default", "cpu", "cu118", "cu126", "cu130", "jupyter", "devel", "rocky9", "centos7"}
    assert wanted <= set(shipped())


@pytest.mark.parametrize("tier", ["quick", "standard", "deep"])
def test_every_tier_of_the_checks_can_be_asked_for(tier: str) -> None:
    assert read(f"smoke: {{tier: {tier}}}\n").smoke == Smoke(tier=tier)


def test_docs_name_every_key() -> None:
    docs = (Path(definition.__file__).parents[2] / "docs" / "images.md").read_text()
    for kind in (Definition, Constraints, Smoke):
        for key, field in records.fields(kind).items():
            assert f"| `{key}` | {field.doc.text} |" in docs


TREES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.requirement("R3", "R12")
@given(st.dictionaries(st.sampled_from([*records.fields(Definition), "nope"]), TREES, max_size=6))
def test_any_tree_is_read_or_refused_with_its_place(tree: dict[str, object]) -> None:
    collected = Faults()
    definition._values(tree, "train.yaml", collected)
    try:
        collected.refuse()
    except UsageError as error:
        messages = (error.message, *error.details)
        assert all(message.startswith(("train.yaml: ", "... and ")) for message in messages)
        assert all("\n" not in message for message in messages)
