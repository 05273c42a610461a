import pytest

from envkit.evidence import contents
from envkit.ground.errors import IntegrityError

_HEAD = b"Metadata-Version: 2.1\nName: Torch\nVersion: 2.15.0\n"


def test_requirements_are_parsed() -> None:
    found = contents.metadata(
        "a.whl", _HEAD + b'Requires-Dist: triton~=3.9.0; extra == "x"\nRequires-Dist: triton==1\n'
    )
    assert (found.name, found.version, str(found.requirement("triton"))) == ("torch", "2.15.0", "triton==1")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (_HEAD + b"Requires-Dist: torch ==\n", "'torch ==' is not a requirement"),
        (_HEAD + b"Requires-Dist: caf\xe9==1\n", "not UTF-8"),
        (_HEAD + b"Name: other\n", "name is given twice"),
        (b"Metadata-Version: 2.1\nName: torch\n", "no name or no version"),
        (_HEAD + b"Summary: a\rRequires-Dist: evil\n", "carriage return"),
        (_HEAD + b"Requires-Dist: a\n" * 1001, "1001 requirements"),
    ],
)
def test_metadata_that_cannot_be_believed_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(IntegrityError, match=said):
        contents.metadata("a.whl", data)


def test_a_description_in_another_encoding_does_not_matter() -> None:
    assert contents.metadata("a.whl", _HEAD + b"\nna\xefve\n").version == "2.15.0"


def test_constants_are_read_and_nothing_is_executed() -> None:
    text = b"import sys\nsys.exit(9)\ncuda: str = '13.2'\nother = open('x')\nhip = None\n"
    found = contents.constants("a.whl", "torch/version.py", text, ("cuda", "hip", "other"))
    assert {name: one.value for name, one in found.items()} == {"cuda": "13.2", "hip": None}


def test_a_constant_is_quoted_with_its_place() -> None:
    found = contents.constants("a.whl", "v.py", "# é\ncuda = '13.2'\n".encode(), ("cuda",))
    assert (found["cuda"].quote, found["cuda"].offset) == ("cuda = '13.2'", 5)


@pytest.mark.parametrize("data", [b"cuda = (", b"\xff", b"a = " + b"(" * 5000, b"a\0b"])
def test_a_python_file_that_does_not_parse_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="not a Python file that parses"):
        contents.constants("a.whl", "v.py", data, ("cuda",))


def test_the_architecture_string_is_found_across_pieces() -> None:
    data = b"x" * 999 + b"\0sm_75 sm_90a compute_90\0" + b"y" * 50
    found = contents.arch_flags("a.whl", "lib.so", iter([data[:1005], data[1005:]]))
    assert (found.value, found.offset) == ("sm_75 sm_90a compute_90", 1000)


def test_the_architecture_string_may_follow_another_constant() -> None:
    found = contents.arch_flags("a.whl", "lib.so", iter([b"needs sm_90\0std::string ipc_hsm_70 sm_75\0"]))
    assert found.value == "sm_70 sm_75"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nothing here", "no list"),
        (b"\0sm_75 sm_80\0abc\0sm_75 sm_90\0", "2 different lists"),
        (b"\0" + b" ".join([b"sm_75"] * 400) + b"\0", "of 2399 bytes"),
        (b"\0sm_75 and others\0", "no list"),
    ],
)
def test_another_number_of_lists_than_one_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(IntegrityError, match=said):
        contents.arch_flags("a.whl", "lib.so", iter([data]))


def test_a_list_of_ten_megabytes_is_refused() -> None:
    pieces = (b"\0" * (at == 0) + b"sm_75 " * 10_000 for at in range(170))
    with pytest.raises(IntegrityError, match="no list"):
        contents.arch_flags("a.whl", "lib.so", pieces)


def test_flags_become_capabilities() -> None:
    assert contents.capabilities("sm_75 sm_100 sm_120a compute_120") == (("7.5", "10.0", "12.0"), ("12.0",))


def test_the_table_of_releases_is_read() -> None:
    text = b"PYTORCH_RELEASES_CODE_CC: dict = {'12.6': {'x86_64': {50, 90}, 'aarch64': {80}}, 'x': 3}\n"
    found = contents.constants("a.whl", "c.py", text, (contents.ARCH_TABLE,))[contents.ARCH_TABLE]
    assert contents.arch_table(found) == {("12.6", "x86_64"): ("5.0", "9.0"), ("12.6", "aarch64"): ("8.0",)}
