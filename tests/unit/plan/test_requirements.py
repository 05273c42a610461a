"""Requirements files: what each line is worth, and what a definition makes of them."""

from pathlib import Path

import pytest

from envkit.facts.load import load
from envkit.ground.errors import ConflictError, UsageError
from envkit.plan.definition import Definition, parse
from envkit.plan.planner import plan_of
from envkit.plan.requirements import Line, read, sort

HEAD = "schema: envkit.image/1\ntitle: x\nrequirements: [r.txt]\n"
REQUEST = 'request: {os: debian12, python: "3.11"}\n'


def lines(*texts: str) -> tuple[Line, ...]:
    return tuple(Line(where=f"r.txt:{number}", text=text) for number, text in enumerate(texts, 1))


def definition(folder: Path, text: str, more: str = REQUEST) -> Definition:
    (folder / "r.txt").write_text(text)
    return parse(HEAD + more, where="image.yaml", folder=folder)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("torch==2.1.0", [("torch", "==2.1.0")]),
        ("torch==2.1.0+cu118", [("torch", "==2.1.0"), ("cuda", "11.8")]),
        ("torch==2.1.0+cpu", [("torch", "==2.1.0"), ("cpu", "true")]),
        ("torch<2.3,>=2.1", [("torch", ">=2.1,<2.3")]),
        ("torch", [("torch", "")]),
        ("torch~=2.1 ; sys_platform == 'linux'", [("torch", "~=2.1")]),
        ("torchvision==0.15.2+cu117", [("torchvision", "==0.15.2"), ("cuda", "11.7")]),
        ("--extra-index-url https://wheels.example.com/whl/cu121", [("cuda", "12.1")]),
        ("--index-url=https://wheels.example.com/whl/cpu/", [("cpu", "true")]),
        ("-f https://wheels.example.com/whl/cu113/torch_stable.html", [("cuda", "11.3")]),
    ],
)
def test_the_torch_family_and_its_indexes_are_constraints(text: str, asked: list[tuple[str, str]]) -> None:
    found = sort(lines(text))
    assert [(one.field, one.value) for one in found.asked] == asked
    assert (found.packages, found.left) == ((), ())


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("einops", "einops"),
        ("numpy < 2, >= 1.23", "numpy>=1.23,<2"),
        ("transformers[torch,vision]==4.36.0", "transformers[torch,vision]==4.36.0"),
        ("tqdm>=4 ; python_version >= '3.8'", "tqdm>=4"),
        ("requests==2.31.0 --hash=sha256:aa --hash=sha256:bb", "requests==2.31.0"),
    ],
)
def test_other_lines_are_packages(text: str, spec: str) -> None:
    assert [one.spec for one in sort(lines(text)).packages] == [spec]


@pytest.mark.parametrize(
    ("text", "why", "harmless"),
    [
        ("git+https://code.example.com/a.git", "it is a path or URL", False),
        ("pkg @ https://files.example.com/pkg.whl", "it is a path or URL", False),
        ("./vendored", "it is a path or URL", False),
        ("-e .", "an editable install", False),
        ("-c constraints.txt", "constraints files are not read", False),
        ("--pre", "the option --pre is not supported", False),
        ("one two", "is not a requirement", False),
        ("python==3.10", "is resolved, not listed", False),
        ("torch==2.1.0+rocm5.6", "the build rocm5.6 is neither", False),
        ("name==${VERSION}", "variables are not replaced", False),
        ("tomli ; python_version < '3.11'", "depends on the Python version", False),
        ("pywin32 ; sys_platform == 'win32'", "it is not for this system", True),
        ("--index-url https://index.example.com/simple", "the package index is a setting", True),
    ],
)
def test_a_line_that_cannot_be_used_has_a_reason(text: str, why: str, harmless: bool) -> None:
    found = sort(lines(text))
    assert [(why in one.why, one.harmless) for one in found.left] == [(True, harmless)]
    assert (found.asked, found.packages) == ((), ())


@pytest.mark.parametrize(("python", "taken"), [("3.10", True), ("3.12", False)])
def test_a_marker_is_decided_by_the_python_of_the_request(python: str, taken: bool) -> None:
    assert bool(sort(lines("tomli ; python_version < '3.11'"), python=python).packages) is taken


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("torch==2.1.0+cu118", "torchvision==0.16.0+cu121"),
        ("--index-url https://wheels.example.com/whl/cpu", "torch==2.1.0+cu118"),
        ("einops==0.6", "einops>=0.7"),
        ("einops==0.6", "Einops==0.7"),
        ("torch==2.1.0", "torch==2.2.0"),
    ],
)
def test_a_line_that_contradicts_an_earlier_one_names_it(first: str, second: str) -> None:
    left = sort(lines(first, second)).left
    assert [(one.line.where, one.why) for one in left] == [("r.txt:2", f"contradicts r.txt:1: {first}")]


def test_continued_lines_comments_and_included_files_keep_their_places(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "r.txt").write_text("\ufeff# all\na==1 \\\n  --hash=sha256:aa  # why\n-r more/b.txt\nc#egg\n")
    (tmp_path / "more" / "b.txt").write_text("\nb==2\n")
    found = [(line.where, " ".join(line.text.split())) for line in read("r.txt", tmp_path)]
    assert found == [("r.txt:2", "a==1 --hash=sha256:aa"), ("more/b.txt:2", "b==2"), ("r.txt:5", "c#egg")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-r ../other.txt", "is outside the folder"),
        ("-r missing.txt", "missing.txt: no such file"),
        ("-r r.txt", "r.txt:1: r.txt includes itself"),
    ],
)
def test_an_included_file_that_cannot_be_read_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read("r.txt", tmp_path)
    assert caught.value.message.startswith("r.txt:1: ")


def test_a_file_in_utf_16_says_so(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_bytes("torch\n".encode("utf-16"))
    with pytest.raises(UsageError, match="UTF-16, not UTF-8"):
        read("r.txt", tmp_path)


def test_requirements_are_part_of_the_request_and_of_the_packages(tmp_path: Path) -> None:
    found = definition(tmp_path, "torch==2.3.1+cu121\neinops>=0.7\n")
    plan = plan_of(found, {}, load())
    assert (plan.resolution.torch, plan.resolution.cuda) == ("2.3.1", "12.1")
    assert plan.pip == ("einops>=0.7",)


def test_torchaudio_in_a_requirements_file_is_a_companion(tmp_path: Path) -> None:
    found = definition(tmp_path, "torch==2.3.1\ntorchaudio\n")
    assert any(spec.startswith("torchaudio==2.3.1") for spec in plan_of(found, {}, load()).family)


def test_a_request_and_a_file_that_agree_are_one_constraint(tmp_path: Path) -> None:
    more = 'request: {torch: "2.3.*", cuda: "12.1"}\n'
    found = definition(tmp_path, "torch>=2.2\n--extra-index-url https://wheels.example.com/whl/cu121\n", more)
    assert dict(found.request) == {"torch": "==2.3.*,>=2.2", "cuda": "12.1"}


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        ("torch==2.3.1\n", '{torch: "2.2.*"}', "r.txt:1: 'torch==2.3.1' contradicts .* request.torch is 2.2"),
        ("torch==2.3.1+cu118\n", '{cuda: "12.1"}', "r.txt:1: .* whose request.cuda is 12.1"),
        ("torch==2.3.1+cu118\n", "{cpu: true}", "r.txt:1: .* whose request.cpu is true"),
        ("torch==2.3.1+cpu\n", '{cuda: "12.1"}', "r.txt:1: .* whose request asks for CUDA"),
        ("einops==0.6\neinops>0.7\n", "{}", "r.txt:2: 'einops>0.7' contradicts r.txt:1: einops==0.6"),
        ("a\n-e .\n", "{}", "r.txt:2: '-e .' cannot be used: an editable install"),
    ],
)  # fmt: skip
def test_what_contradicts_names_file_line_and_reason(tmp_path: Path, text: str, asked: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        definition(tmp_path, text, f"request: {asked}\n")


def test_a_missing_file_is_named_with_the_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"image.yaml: requirements: .*r.txt: no such file"):
        parse(HEAD, where="image.yaml", folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("torchvision==0.15.0\n", {"torch": "2.3.1"}, "r.txt:1: .* does not allow torchvision 0.18.1"),
        ("torch==2.2.0\n", {"torch": "2.3.1"}, "r.txt:1: 'torch==2.2.0' does not allow torch 2.3.1"),
    ],
)  # fmt: skip
def test_a_flag_against_a_requirements_file_is_a_conflict(
    tmp_path: Path, text: str, given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConflictError, match=message):
        plan_of(definition(tmp_path, text), given, load())
