import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.lock.index_locations import IndexLocations, login_of, without_login
from envkit.lock.values import url as check_url

PLACES = IndexLocations(
    conda_alias="https://user:secret@conda.example.com:8443/t/token/mirror",
    torch_index="https://wheels.example.com/whl/cu126",
    torch_public="https://download.pytorch.org/whl/cu126",
)


@pytest.mark.parametrize(
    ("served", "locked"),
    [
        (
            "https://conda.example.com:8443/t/token/mirror/conda-forge/noarch/a-1-0.conda",
            "https://conda.anaconda.org/conda-forge/noarch/a-1-0.conda",
        ),
        (
            "https://user:secret@conda.example.com:8443/t/token/mirror/conda-forge/noarch/a-1-0.conda",
            "https://conda.anaconda.org/conda-forge/noarch/a-1-0.conda",
        ),
        (
            "https://wheels.example.com/whl/cu126/torch-2.7.1%2Bcu126-cp311-cp311-linux_x86_64.whl",
            "https://download.pytorch.org/whl/cu126/torch-2.7.1%2Bcu126-cp311-cp311-linux_x86_64.whl",
        ),
        (
            "https://wheels.example.com/whl/numpy-2-py3-none-any.whl#sha256=0",
            "https://download.pytorch.org/whl/numpy-2-py3-none-any.whl",
        ),
        ("https://u:p@files.example.com:99/a.whl?X-Signature=1#x", "https://files.example.com:99/a.whl"),
    ],
)
def test_a_lock_names_the_public_place_and_no_login(served: str, locked: str) -> None:
    assert PLACES.public(served) == locked
    assert check_url(locked) is None


def test_what_is_locked_is_fetched_from_the_mirror_with_its_login() -> None:
    assert PLACES.fetch_url("https://conda.anaconda.org/conda-forge/noarch/a-1-0.conda") == (
        "https://user:secret@conda.example.com:8443/t/token/mirror/conda-forge/noarch/a-1-0.conda"
    )
    assert PLACES.fetch_url("https://files.example.com/a.whl") == "https://files.example.com/a.whl"


def test_without_mirrors_nothing_changes_its_place() -> None:
    url = "https://conda.anaconda.org/conda-forge/noarch/a-1-0.conda"
    assert IndexLocations().public(url) == url
    assert IndexLocations().fetch_url(url) == url


WORDS = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)


@given(user=WORDS, password=WORDS, host=WORDS, port=st.integers(1, 65535), path=st.lists(WORDS, min_size=1, max_size=4))
def test_no_login_survives_and_the_port_does(user: str, password: str, host: str, port: int, path: list[str]) -> None:
    clean = without_login(f"https://{user}:{password}@{host}.example.com:{port}/{'/'.join(path)}?k={password}#{user}")
    assert clean == f"https://{host}.example.com:{port}/{'/'.join(path)}"


def test_a_login_is_read_with_its_escapes_undone() -> None:
    assert login_of("https://me%40x:p%3Aw@files.example.com/") == ("me@x", "p:w")
    assert login_of("https://files.example.com/") is None
