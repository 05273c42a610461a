import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.facts.load import load as load_facts
from envkit.facts.model import Facts
from envkit.ground.errors import ConflictError, UsageError
from envkit.ground.versions import key
from envkit.pipeline.resolving import asked
from envkit.plan import family, names, planner
from envkit.plan.definition import Definition, load, parse, shipped
from envkit.plan.labels import plan_labels
from envkit.plan.model import BuildPlan
from envkit.plan.planner import CPU_FROM_CONDA, completed, plan_of
from envkit.plan.store import plan_from_json
from envkit.plan.variables import read_requirement, require_cuda


@cache
def facts() -> Facts:
    return load_facts()


def made(name: str = "default", **given_: object) -> BuildPlan:
    return plan_of(load(name), given_, facts())  # type: ignore[arg-type]


def define(body: str) -> Definition:
    return parse(f"schema: envkit.image/1\ntitle: T\n{body}", where="train.yaml", folder=Path("/nonexistent"))


def planned(body: str, **given_: object) -> BuildPlan:
    return plan_of(define(body), given_, facts())  # type: ignore[arg-type]


def test_no_name_is_the_default_image() -> None:
    assert asked(None, {}, facts(), pytest.fail).plan() == made("default")


def test_cu118_is_the_last_torch_with_it() -> None:
    plan = made(cuda="11.8")
    assert plan.family == ("torch==2.7.1+cu118", "torchvision==0.22.1+cu118")
    assert plan.resolution.index == "https://download.pytorch.org/whl/cu118"
    assert dict(plan.solve_env) == {"CONDA_OVERRIDE_CUDA": "11.8", "CONDA_OVERRIDE_GLIBC": "2.36"}
    assert dict(plan.env)["NVIDIA_REQUIRE_CUDA"] == "cuda>=11.8 driver>=450.80"
    assert plan.base == "docker.io/library/debian:bookworm-slim"
    assert plan.installer is not None
    assert plan.installer.file.endswith("-Linux-x86_64.sh")


def test_cpu_takes_everything_from_conda_forge_and_says_so() -> None:
    plan = made(cpu=True)
    assert plan.resolution.source == "conda-forge"
    assert plan.family == (f"pytorch={plan.resolution.torch}=cpu*",)
    assert plan.channels == ("conda-forge",)
    assert CPU_FROM_CONDA in plan.resolution.warnings
    assert dict(plan.env)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert not {name for name, _ in plan.env if name.startswith("NVIDIA_") and name != "NVIDIA_VISIBLE_DEVICES"}
    assert dict(plan.solve_env) == {"CONDA_OVERRIDE_GLIBC": "2.36"}


def test_cpu_with_a_source_is_taken_at_its_word() -> None:
    plan = made(cpu=True, source="pytorch")
    assert plan.family[0].endswith("+cpu")
    assert CPU_FROM_CONDA not in plan.resolution.warnings


def test_cpu_wheels_come_from_the_wheel_index() -> None:
    plan = made("cpu", template="wheels")
    assert plan.resolution.source == "pytorch"
    assert plan.installer is None
    assert (plan.channels, plan.solve_env, plan.conda) == ((), (), ())
    assert "numpy" in plan.family


def test_pypi_has_no_local_version() -> None:
    plan = made(cuda="12.6", source="pypi", template="wheels")
    assert plan.family[:2] == ("torch==2.7.1", "torchvision==0.22.1")
    assert plan.resolution.index is None


def test_conda_forge_with_cuda_cannot_become_a_cpu_build() -> None:
    plan = made(cuda="12.9", source="conda-forge")
    assert plan.family == (f"pytorch={plan.resolution.torch}=cuda*", "cuda-version=12.9")


def test_the_pytorch_channel_keeps_its_selector() -> None:
    plan = made(cuda="12.1", source="conda-pytorch")
    assert plan.family[0] == f"pytorch={plan.resolution.torch}=*cuda12.1*"
    assert "pytorch-cuda=12.1" in plan.family
    assert plan.channels[-1] == "conda-forge"
    assert plan.channels[0] == "pytorch"


def test_a_reason_names_the_definition_or_the_request() -> None:
    reasons = made("cu118", python="3.12").resolution.reasons
    assert (reasons["cuda"], reasons["os"]) == ("from images/cu118.yaml", "from images/cu118.yaml: Debian 12")
    assert reasons["python"] == "requested"


def test_flags_win_over_the_definition() -> None:
    plan = made("cu118", cuda="12.6")
    assert plan.resolution.cuda == "12.6"
    assert plan.name == "cu118"


def test_cpu_flag_takes_the_definitions_cuda_away() -> None:
    assert made("cu118", cpu=True).resolution.cuda is None


def test_cuda_flag_takes_the_definitions_cpu_away() -> None:
    assert made("cpu", cuda="12.6").resolution.cuda == "12.6"


def test_typed_contradictions_stay_contradictions() -> None:
    with pytest.raises(UsageError, match="--cpu and --cuda contradict"):
        made(cpu=True, cuda="12.6")


def test_a_fault_names_the_flag_or_the_definition() -> None:
    with pytest.raises(UsageError, match=r"^--os: unknown operating system 'debain12'"):
        made(os="debain12")
    with pytest.raises(UsageError, match=r"^train.yaml: request.os: unknown operating system 'debain12'"):
        planned("request: {os: debain12}\n")
    with pytest.raises(UsageError, match=r"^train.yaml: request.gpus: unknown GPU 'H9000'"):
        planned("request: {gpus: [H9000]}\n")


def test_no_combination_is_a_conflict() -> None:
    with pytest.raises(ConflictError):
        made(torch="1.12.1", cuda="12.1")


def test_wheels_use_the_systems_python() -> None:
    plan = made("rocky9", template="wheels")
    assert (plan.interpreter, plan.build_system, plan.system) == ("python3.12", ("python3.12",), ("python3.12",))
    plan = made("default", template="wheels")
    assert (plan.interpreter, plan.build_system) == ("python3", ("python3", "python3-venv"))
    assert plan.system == ("python3", "tini")
    with pytest.raises(ConflictError):
        made("default", template="wheels", python="3.12")


def test_old_rpm_pythons_have_no_dot() -> None:
    plan = planned("request: {os: rockylinux8, python: 3.9, torch: 2.0.*}\ntemplate: wheels\n")
    assert (plan.interpreter, plan.build_system) == ("python3.9", ("python39",))


def test_the_init_process_leads() -> None:
    entry = ("/bin/bash", "/usr/share/envkit/entry.sh")
    assert made().entrypoint == ("/opt/env/bin/tini", "-g", "--", *entry)
    assert made(template="wheels").entrypoint == ("/usr/bin/tini", "-g", "--", *entry)
    assert made("rocky9", template="wheels").entrypoint == entry
    own = planned("entrypoint: [serve]\n")
    assert own.entrypoint[-1] == "serve"
    assert own.cmd == ()


def test_devel_takes_the_toolkit_from_the_tag_table() -> None:
    plan = made("devel")
    assert plan.base == "docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04"
    assert plan.build_base == "docker.io/library/ubuntu:24.04"
    env = dict(plan.env)
    assert env["LD_LIBRARY_PATH"] == ""
    assert env["PATH"].startswith("/opt/env/bin:/usr/local/cuda/bin:")
    assert "build-essential" in plan.system
    assert "ninja" in plan.conda


def test_devel_where_no_toolkit_image_exists() -> None:
    with pytest.raises(UsageError, match="there is none for debian12") as caught:
        made("devel", os="debian12", python="3.11")
    assert "ubuntu24.04" in str(caught.value.hint)
    with pytest.raises(UsageError, match=r"no nvidia/cuda devel image with CUDA 12.6 for centos7"):
        planned("flavor: devel\nrequest: {os: centos7, cuda: 12.6, source: conda-forge}\n")


def test_devel_without_cuda_is_compilers_alone() -> None:
    plan = planned("flavor: devel\nrequest: {cpu: true}\n")
    assert plan.base == "docker.io/library/debian:bookworm-slim"
    assert "build-essential" in plan.system
    assert "LD_LIBRARY_PATH" not in dict(plan.env)


def test_old_systems_get_an_installer_that_runs_there() -> None:
    plan = made("centos7")
    assert plan.installer is not None
    assert key(plan.installer.conda)[0] <= 24
    assert plan.resolution.torch == "2.6.0"
    assert (plan.build_system, plan.system) == ((), ())


def test_features_bring_packages_by_template() -> None:
    conda, wheels = made("jupyter"), made("jupyter", template="wheels")
    assert {"jupyterlab", "tensorboard"} <= set(conda.conda)
    assert {"jupyterlab", "tensorboard"} <= set(wheels.pip)
    assert conda.cmd[0] == "jupyter"


CV = ("libgl1", "libglib2.0-0", "libice6", "libsm6", "libx11-6", "libxcb1", "libxext6")


@pytest.mark.parametrize(
    ("body", "os", "wanted"),
    [
        ("pip: [opencv-python>=4.1.1]", "debian12", CV),
        ("pip: [OpenCV_Contrib.Python==4.10.0.84]", "ubuntu24.04", CV),
        ("pip: ['ultralytics[export]>=8.2', gitpython]", "debian12", (*CV, "git")),
        ("pip: [gitpython]\napt: [git]", "debian12", ("git",)),
        ("pip: [gitpython]", "rockylinux9", ("git",)),
        ("pip: [lightgbm]\ntemplate: wheels", "debian12", ("libgomp1",)),
        ("pip: [opencv-python-headless, numpy]", "debian12", ()),
        ("conda: [opencv]", "debian12", ()),
    ],
)
def test_wheels_bring_the_system_packages_that_their_import_needs(body: str, os: str, wanted: tuple[str, ...]) -> None:
    without = planned("template: wheels" if "wheels" in body else "", os=os).system
    assert planned(body, os=os).system == (*without, *wanted)


def test_system_packages_that_wheels_bring_are_told_once() -> None:
    path = Path("train.yaml")
    notes: list[str] = []
    whole = asked("default", {}, facts(), notes.append)
    whole._loaded[None] = replace(
        define("pip: [ultralytics, opencv-python, gitpython]\napt: [libgl1]"), where=str(path)
    )
    whole.plan()
    whole.plan()
    assert notes == [
        f"the image gets {', '.join(CV[1:])}: ultralytics needs them",
        "the image gets git: gitpython needs it",
    ]


def test_dali_goes_by_cuda_major() -> None:
    plan = planned("features: [dali]\nrequest: {cuda: 12.6}\n")
    assert "nvidia-dali-cuda120" in plan.pip
    assert dict(plan.env)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility,video"
    with pytest.raises(UsageError, match="dali needs CUDA"):
        planned("features: [dali]\nrequest: {cpu: true}\n")


def test_what_the_template_or_system_cannot_install() -> None:
    with pytest.raises(
        UsageError, match=r"train.yaml: conda: the wheels template cannot install conda packages"
    ) as caught:
        planned("template: wheels\nconda: [scipy]\nrpm: [git]\n")
    assert len(caught.value.details) == 1
    assert planned("apt: [git]\nrpm: [git-core]\n").system == ("git",)


def test_companions_are_what_the_plan_promises() -> None:
    plan = planned("companions: []\n")
    assert plan.resolution.torchvision is None
    assert len(plan.family) == 1
    assert "numpy" not in plan.conda
    both = planned("companions: [torchvision, torchaudio]\nrequest: {cuda: 11.8}\n")
    assert both.family == ("torch==2.7.1+cu118", "torchvision==0.22.1+cu118", "torchaudio==2.7.1+cu118")


def test_old_torch_pins_numpy_once() -> None:
    plan = planned("request: {torch: 2.1.2, cuda: 11.8, python: 3.11}\n")
    assert [spec for spec in plan.conda if spec.startswith("numpy")] == ["numpy<2"]
    wheels = planned("request: {torch: 2.1.2, cuda: 11.8, python: 3.11}\ntemplate: wheels\n")
    assert [spec for spec in wheels.family if spec.startswith("numpy")] == ["numpy<2"]


def test_a_gpu_that_runs_ptx_alone_needs_the_native_driver() -> None:
    plan = made(cuda="12.8")
    assert " driver>=" in dict(plan.env)["NVIDIA_REQUIRE_CUDA"]
    alone = replace(plan.resolution, gpus=("9.9",), gpu_archs=("8.0",))
    assert require_cuda(alone) == "cuda>=12.8"


def test_an_image_for_forward_compatibility_starts_on_the_branch_that_it_is_for() -> None:
    plan = planned("request: {torch: 2.15, gpus: [H100], driver: 535.104.05, allow_forward_compat: true}\n")
    assert plan.resolution.driver is not None
    assert plan.resolution.driver.package == "cuda-compat-13-0"
    required = dict(plan.env)["NVIDIA_REQUIRE_CUDA"]
    assert required == "cuda>=13.0 driver>=580 driver>=535,driver<536"
    assert read_requirement(required) is not None
    assert plan_from_json(json.loads(plan.canonical()), "plan.json") == plan


def test_limits_of_a_definition_are_those_of_the_flags() -> None:
    limited = planned("request: {max_size: 3GB}\n").resolution
    assert (limited.torch, limited.source) == ("2.15.0", "pypi")
    with pytest.raises(ConflictError, match="--max-size 100MB"):
        planned("request: {max_size: 100MB}\n")
    with pytest.raises(ConflictError, match=r"--torch 2\.7 and --supported-only"):
        planned("request: {torch: 2.7, supported_only: true}\n")


def test_own_templates_are_named_after_what_they_extend() -> None:
    plan = made(template="wheels-mine")
    assert plan.template == "wheels-mine"
    assert plan.interpreter == "python3"
    with pytest.raises(UsageError, match="--template: 'mine' is not a template name"):
        made(template="mine")


def test_the_example_of_the_docs_is_a_plan() -> None:
    docs = (Path(planner.__file__).parents[2] / "docs" / "images.md").read_text()
    example = docs.partition("```yaml\n")[2].partition("```")[0]
    plan = plan_of(parse(example, where="train.yaml", folder=Path("/nonexistent")), {}, facts())
    assert plan.resolution.cuda == "12.6"
    assert plan.resolution.gpus == ("8.0", "8.9")
    assert plan.pip == ("einops",)


def test_a_user_without_group_gets_one() -> None:
    assert planned("user: '2000'\n").user == "2000:2000"


def test_labels_say_what_the_image_is() -> None:
    plan = planned("labels: {com.example.team: vision}\nrequest: {cuda: 11.8}\n")
    labels = plan_labels(plan)
    assert labels["envkit.plan"] == plan.digest
    assert labels["envkit.torch"] == "2.7.1"
    assert labels["envkit.driver.minimum"] == "450.80.02"
    assert labels["com.example.team"] == "vision"
    assert list(labels) == sorted(labels)


@pytest.mark.parametrize("flavor", ["runtime", "devel"])
def test_labels_of_an_image_without_torch_do_not_name_it(flavor: str) -> None:
    plan = replace(planned(f"flavor: {flavor}\nrequest: {{cuda: 12.6, os: ubuntu22.04}}\n"), family=())
    labels = plan_labels(plan)
    own = {name.removeprefix("envkit.") for name in labels}
    assert not own & {"torch", "cudnn", "nccl", "source", "gpu.archs", "gpu.ptx"}
    has_cuda = flavor == "devel"
    assert labels["envkit.cuda"] == ("12.6" if has_cuda else "none")
    assert ("driver.minimum" in own, "driver.native" in own) == (has_cuda, has_cuda)
    version = labels["org.opencontainers.image.version"]
    assert version == f"python-{plan.resolution.python}-{'cuda-12.6' if has_cuda else 'cpu'}"


@settings(deadline=None)
@given(
    st.sampled_from(sorted(shipped())),
    st.fixed_dictionaries(
        {},
        optional={
            "cuda": st.sampled_from(["11.8", "12.6", "12.8", "13.0"]),
            "source": st.sampled_from(["pytorch", "pypi", "conda-forge"]),
            "template": st.sampled_from(["miniconda", "wheels"]),
            "cpu": st.just(True),
        },
    ),
)
def test_plans_are_deterministic_and_their_env_is_sorted(name: str, typed: dict[str, object]) -> None:
    try:
        first = plan_of(load(name), typed, facts())  # type: ignore[arg-type]
    except (ConflictError, UsageError):
        return
    assert plan_of(load(name), typed, facts()).digest == first.digest  # type: ignore[arg-type]
    assert list(first.env) == sorted(first.env)
    assert all(
        ("+" in spec) == bool(first.resolution.local_version) for spec in first.family if spec.startswith("torch==")
    )


@pytest.mark.parametrize(
    ("companions", "torch"),
    [
        ("'torchvision==0.21.*'", "2.6.0"),
        ("'torchvision==0.15.2', numpy", "2.0.1"),
        ("torchvision, 'torchaudio==2.4.0'", "2.4.0"),
        ("'torchaudio>=2.3,<2.5'", "2.4.1"),
        ("'torchvision>=0.20', 'torchaudio==2.5.1'", "2.5.1"),
    ],
)
def test_the_version_of_a_companion_chooses_torch(companions: str, torch: str) -> None:
    assert planned(f"companions: [{companions}]").resolution.torch == torch


@pytest.mark.parametrize("source", ["conda-forge", "conda-pytorch", "pypi"])
def test_the_version_of_a_companion_chooses_torch_of_every_source(source: str) -> None:
    body = f"companions: ['torchvision==0.20.*']\nrequest: {{source: {source}, torch: '<=2.5.1'}}"
    assert planned(body).resolution.torch.startswith("2.5.")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("torchtext", "is not one of numpy, torchvision, torchaudio"),
        ("numpy<2", "has a version, which belongs under pip, conda or constraints"),
        ("torchvision=0.21", "has a version that cannot be read: '=0.21' is not a version"),
        ("torchvision==a.b", "has a version that cannot be read"),
        ("torchaudio 2.4", "is not one of numpy, torchvision, torchaudio"),
    ],
)
def test_a_companion_that_cannot_be_read_is_an_error(word: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"companions.*{why}"):
        planned(f"companions: ['{word}']")


def test_a_version_of_a_companion_that_torch_excludes_is_a_conflict_with_its_place() -> None:
    with pytest.raises(ConflictError) as caught:
        planned("companions: ['torchvision==0.15.2']\nrequest: {torch: '2.6.0'}")
    assert caught.value.details[0].endswith("companions: torchvision==0.15.2")


def test_a_companion_without_a_wheel_is_left_out_or_refused() -> None:
    request = "request: {torch: 2.5.1, python: '3.13'}\n"
    plan = planned(request)
    assert not [spec for spec in plan.family if spec.startswith("torchvision")]
    assert any("torchvision 0.20.1" in line and "is left out" in line for line in plan.resolution.warnings)
    with pytest.raises(ConflictError) as caught:
        planned(f"companions: [torchvision]\n{request}")
    assert "--with torchvision" in caught.value.message
    assert caught.value.details[0].endswith("companions: torchvision")
    assert caught.value.hint == "envkit resolve --torch 2.6.0 --python 3.13 --with torchvision"
    assert planned("companions: [torchvision]\nrequest: {torch: 2.5.1}\n").resolution.python == "3.12"


@pytest.mark.parametrize(
    ("spec", "conda", "limited"),
    [
        ("numpy", True, "numpy !=1.24.*,!=1.25.0,>=1.23,<2"),
        ("numpy", False, "numpy!=1.24.*,!=1.25.0,>=1.23,<2"),
        ("numpy<2", False, "numpy<2,!=1.24.*,!=1.25.0,>=1.23"),
        ("NumPy >=1.26", True, "NumPy >=1.26,!=1.24.*,!=1.25.0,>=1.23,<2"),
        ("numpy=1.26", True, "numpy=1.26"),  # the author says which one; `envkit lock` refuses one that is not allowed
        ("scipy", True, "scipy ==1.11.4"),
        ("einops", True, "einops 0.8.*"),
        ("einops", False, "einops==0.8.*"),
        ("tqdm", True, "tqdm"),
    ],
)
def test_constraints_limit_what_is_named_without_an_exact_version(spec: str, conda: bool, limited: str) -> None:
    constraints = ("numpy<2,>=1.23,!=1.24.*,!=1.25.0", "scipy===1.11.4", "einops==0.8.*")
    found = family.constrained(spec, constraints, conda=conda)
    assert found == limited
    assert names.conda_spec(found) is None if conda else names.pip_spec(found) is None


def test_a_plan_gets_the_system_packages_of_what_its_lock_brings() -> None:
    plan = planned("pip: [weasyprint]")
    assert "libpango-1.0-0" in plan.system
    whole, added = completed(plan, {"weasyprint", "pyzbar", "numpy", "pydub"}, facts())
    assert added == {"pyzbar": ("libzbar0",)}
    assert whole.system == (*plan.system, "libzbar0")
    assert completed(whole, {"pyzbar"}, facts()) == (whole, {})
