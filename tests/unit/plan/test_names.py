import pytest

from envkit.plan import names


@pytest.mark.parametrize(
    "spec", ["scipy", "scipy >=1.11,<2", "scipy=1.11.*", "scipy=1.11.1=py311h64a7726_0", "r-base 4.3"]
)
def test_conda_specs(spec: str) -> None:
    assert names.conda_spec(spec) is None


@pytest.mark.parametrize(
    "spec",
    [
        "", "scipy;touch /PWNED", "$(id)", "`id`", "scipy[version='>1']", "nvidia::cuda-nvcc", "scipy\nRUN id", "-y",
        "--help", "scipy && id", "scipy | sh", "scipy > /etc/passwd'", "../scipy", "https://example.com/x.conda",
    ],
)  # fmt: skip
def test_conda_specs_that_are_more_than_specs(spec: str) -> None:
    assert "is not a conda spec" in str(names.conda_spec(spec))


@pytest.mark.parametrize("spec", ["einops", "einops>=0.7,<1", "ray[default,tune]==2.9.*", "a.b-c_d ~= 1.0"])
def test_pip_specs(spec: str) -> None:
    assert names.pip_spec(spec) is None


@pytest.mark.parametrize(
    "spec",
    [
        "", "einops @ https://example.com/x.whl", "-r other.txt", "--extra-index-url=https://x.example.com", "./local",
        "numpy>=1.*", "numpy==foo", "numpy==1.2.x",
        "einops; python_version<'3'", "einops>=1 --hash=sha256:0", "git+https://example.com/x", "einops\n--pre", "a b",
    ],
)  # fmt: skip
def test_pip_specs_that_are_more_than_names(spec: str) -> None:
    assert "is not a requirement" in str(names.pip_spec(spec))


@pytest.mark.parametrize("spec", ["torch==2.7", "Torch", "torchvision", "pytorch", "python=3.11", "pytorch-cuda"])
def test_what_is_resolved_is_not_listed(spec: str) -> None:
    assert "is chosen by the resolver" in str(names.conda_spec(spec) or names.pip_spec(spec))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("LD_PRELOAD", "/x.so", "loads code"),
        ("LD_LIBRARY_PATH", "/x", "other CUDA libraries"),
        ("LD_BIND_NOW", "1", "would change how conda"),
        ("BASH_ENV", "/x", "bash runs the file"),
        ("PATH", "/x", "the template sets it"),
        ("CONDA_PREFIX", "/x", "would change how conda"),
        ("NVIDIA_DISABLE_REQUIRE", "1", "driver check"),
        ("NVIDIA_REQUIRE_CUDA", "cuda>=1", "generated from the facts"),
        ("CUDA_VERSION", "12", "legacy"),
        ("A-B", "1", "is not a variable name"),
        ("A B", "1", "is not a variable name"),
        ("WANDB_API_KEY", "x", "looks like a secret"),
        ("db_password", "x", "looks like a secret"),
        ("HTTPS_PROXY", "http://me:pw@proxy.example.com", "a URL with a login"),
        ("X", "a\nRUN id", "control or format character U+000A"),
        ("X", "a\u202eb", "U+202E"),
        ("X", "a" * 5000, "longer than"),
    ],
)
def test_variables_that_are_refused(name: str, value: str, why: str) -> None:
    assert why in str(names.variable(name, value))


def test_plain_variables() -> None:
    for name, value in [("OMP_NUM_THREADS", "8"), ("TOKENIZERS_PARALLELISM", "false"), ("X", '$HOME "é" \\')]:
        assert names.variable(name, value) is None


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("com.example.team", True),
        ("org.opencontainers.image.source", True),
        ("org.opencontainers.image.base.digest", False),
        ("org.opencontainers.image.created", False),
        ("envkit.plan", False),
        ("com.docker.compose", False),
        ("Upper", False),
        ("a b", False),
        ('a"=x RUN', False),
    ],
)
def test_labels(name: str, *, fine: bool) -> None:
    assert (names.label(name, "x") is None) is fine


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        ("1000:1000", True),
        ("12345", True),
        ("0", False),
        ("0:0", False),
        ("root", False),
        ("00:1", False),
        ("1:1:1", False),
    ],
)
def test_users(value: str, *, fine: bool) -> None:
    assert (names.user(value) is None) is fine


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        ("/workspace", True), ("/home/me/src", True), ("/opt/app", True), ("/tmp", True),
        ("/", False), ("workspace", False), ("/proc/self", False), ("/dev/shm", False), ("/etc", False),
        ("/opt/env/x", False),
        ("/opt", False), ("/a/../etc", False), ("/a//b", False), ("/a/", False), ("/a b", False), ("/$HOME", False),
        ("/a\nUSER root", False), ("", False), ("/.wh.usr", False), ("/srv/.wh..wh..opq", False), ("/srv/wh.x", True),
        ("/a" * 65, False),
    ],
)  # fmt: skip
def test_workdirs(value: str, *, fine: bool) -> None:
    assert (names.workdir(value) is None) is fine


def test_conda_run_swallows_signals() -> None:
    assert "signals" in str(names.command(("conda", "run", "python")))
    assert names.command(("python", "-c", "print('$x')")) is None
    assert "U+000A" in str(names.command(("sh", "-c", "a\nb")))
