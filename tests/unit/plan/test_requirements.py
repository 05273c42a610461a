"""Requirements files: what each line is worth, and what a definition makes of them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.facts.load import load
from envkit.ground.errors import ConflictError, UsageError
from envkit.plan.definition import Definition, parse
from envkit.plan.planner import plan_of
from envkit.plan.requirements import Line, Target, included, read, reading_once, sort

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
    assert [(one.field, one.value) for one in found.settings] == asked
    assert (found.packages, found.skipped) == ((), ())


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
        ("--pre", "the option --pre is not supported", False),
        ("one two", "is not a requirement", False),
        ("python==3.10", "is chosen by the resolver", False),
        ("torch==2.1.0+rocm5.6", "the build rocm5.6 is neither", False),
        ("name==${VERSION}", "variables are not expanded", False),
        ("tomli ; python_version < '3.11'", "depends on the Python version", False),
        ("pywin32 ; sys_platform == 'win32'", "it is not for this system", True),
        ("--find-links wheels", "'wheels' is not an http or https URL", False),
        ("--extra-index-url http://index.example.com/simple", "is plain http", False),
        ("--index-url https://pypi.example/simple", "packages come from this index", True),
    ],
)
def test_a_line_that_cannot_be_used_has_a_reason(text: str, why: str, harmless: bool) -> None:
    found = sort(lines(text))
    assert [(why in one.why, one.harmless) for one in found.skipped] == [(True, harmless)]
    assert (found.settings, found.packages) == ((), ())


@pytest.mark.parametrize(("python", "taken"), [("3.10", True), ("3.12", False)])
def test_a_marker_is_decided_by_the_python_of_the_request(python: str, taken: bool) -> None:
    assert bool(sort(lines("tomli ; python_version < '3.11'"), Target(python=python)).packages) is taken


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
    left = sort(lines(first, second)).skipped
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
        ("-c ../other.txt", "is outside the folder"),
        ("-c a\0b.txt", "is not a file name"),
        ("-c /etc/constraints.txt", "is outside the folder"),
        ("-c missing.txt", "missing.txt: no such file"),
        ("-cmissing.txt", "missing.txt: no such file"),
        ("--constraint=r.txt", "r.txt:1: r.txt includes itself"),
        ("-c https://user:secret@files.example.com/c.txt", r"'https://\*\*\*@files.example.com/c.txt' is a URL"),
        ("-r https://files.example.com/r.txt", "is a URL, and only files are read"),
        ("-r ../other.txt", "is outside the folder"),
        ("-r missing.txt", "missing.txt: no such file"),
        ("-rmissing.txt", "missing.txt: no such file"),
        ("--requirement=missing.txt", "missing.txt: no such file"),
        ("-r r.txt", "r.txt:1: r.txt includes itself"),
    ],
)
def test_an_included_file_that_cannot_be_read_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read("r.txt", tmp_path)
    assert caught.value.message.startswith("r.txt:1: ")


def test_a_list_that_powershell_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_bytes("torch==2.6.0\r\neinops\r\n".encode("utf-16"))
    assert [line.text for line in read("r.txt", tmp_path)] == ["torch==2.6.0", "einops"]


def constrained(folder: Path, constraints: str, text: str = "-c limits/c.txt\ntransformers\n") -> Definition:
    (folder / "limits").mkdir()
    (folder / "limits" / "c.txt").write_text(constraints)
    return definition(folder, text)


def test_a_constraints_file_limits_versions_and_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("einops\n")
    (tmp_path / "c2.txt").write_text("pillow<11 ; sys_platform == 'linux'\npywin32==1 ; sys_platform == 'win32'\n")
    found = constrained(tmp_path, "tokenizers==0.19.1 --hash=sha256:aa\nsafetensors\n-r ../more.txt\n-c ../c2.txt\n")
    plan = plan_of(found, {}, load())
    assert plan.pip == ("einops", "transformers")  # pip, too, installs what a constraints file includes with -r
    assert plan.constraints == ("tokenizers==0.19.1", "pillow<11")


def test_a_constraint_holds_the_torch_family_and_adds_no_companion(tmp_path: Path) -> None:
    text = "torch==2.3.1+cu121\ntorchvision==0.18.1\ntorchaudio==2.3.1\nnumpy==1.26.4\n"
    plan = plan_of(constrained(tmp_path, text), {}, load())
    assert (plan.resolution.torch, plan.resolution.cuda, plan.resolution.torchaudio) == ("2.3.1", "12.1", None)
    assert plan.family == ("torch==2.3.1+cu121", "torchvision==0.18.1+cu121")
    assert "numpy ==1.26.4" in plan.conda
    wheels = plan_of(constrained(tmp_path / "limits", text), {"template": "wheels"}, load())
    assert "numpy==1.26.4" in wheels.family


def test_a_constraint_of_a_companion_that_the_image_has_not_is_ignored(tmp_path: Path) -> None:
    found = constrained(tmp_path, "torchaudio==0.1\n")
    assert plan_of(found, {}, load()).resolution.torchaudio is None
    with pytest.raises(ConflictError, match=r"limits/c.txt:1: 'torchvision==0.1' does not allow torchvision 0"):
        plan_of(constrained(tmp_path / "limits", "torchvision==0.1\n"), {}, load())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("transformers==4.36.0\n", "limits/c.txt:1: 'transformers==4.36.0' contradicts r.txt:2: transformers>=4.40"),
        ("numpy[x]<2\n", r"limits/c.txt:1: 'numpy\[x\]<2' is a constraint with extras"),
        ("-e .\n", "limits/c.txt:1: '-e .' cannot be used: an editable install"),
        ("pkg @ https://files.example.com/pkg.whl\n", "limits/c.txt:1: .* it is a path or URL"),
    ],
)
def test_a_constraint_that_cannot_hold_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        constrained(tmp_path, text, "-c limits/c.txt\ntransformers>=4.40\n")


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
        ("torch==2.3.1+cpu\n", '{cuda: "12.1"}', "r.txt:1: .* whose request requires CUDA"),
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
        ("torchvision==0.15.2\n", {"torch": "2.3.1"}, "no build matches --torch 2.3.1 and --with torchvision==0.15.2"),
        ("torch==2.2.0\n", {"torch": "2.3.1"}, "r.txt:1: 'torch==2.2.0' does not allow torch 2.3.1"),
    ],
)  # fmt: skip
def test_a_flag_against_a_requirements_file_is_a_conflict(
    tmp_path: Path, text: str, given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConflictError, match=message):
        plan_of(definition(tmp_path, text), given, load())


def test_a_package_of_a_requirements_file_chooses_the_torch(tmp_path: Path) -> None:
    resolution = plan_of(definition(tmp_path, "torchvision>=0.20,<0.21\n"), {}, load()).resolution
    assert (resolution.torch, resolution.torchvision) == ("2.5.1", "0.20.1")
    with pytest.raises(ConflictError) as caught:
        plan_of(definition(tmp_path, "einops\ntorchvision==0.15.2\n"), {"torch": "2.3.1"}, load())
    assert caught.value.details[0] == "r.txt:2: 'torchvision==0.15.2'"


@pytest.mark.requirement("R61")
def test_files_that_include_one_another_many_times_are_read_once(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"r{number}.txt").write_text(f"-r r{number + 1}.txt\n" * 30)
    (tmp_path / "r8.txt").write_text("einops\n")
    before = time.process_time()
    assert [line.text for line in read("r0.txt", tmp_path)] == ["einops"]
    assert time.process_time() - before < 1


def test_a_file_of_two_including_files_counts_once_in_each_role(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("-r a.txt\n-r b.txt\n-c base.txt\n")
    (tmp_path / "a.txt").write_text("-r base.txt\n")
    (tmp_path / "b.txt").write_text("-r base.txt\n-c base.txt\nrich\n")
    (tmp_path / "base.txt").write_text("einops==0.7\n")
    found = [(line.text, line.constraint) for line in read("r.txt", tmp_path)]
    assert found == [("einops==0.7", False), ("einops==0.7", True), ("rich", False)]


@pytest.mark.requirement("R61")
def test_included_lines_share_the_files_that_were_read(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("einops\n")
    line = Line(where="Dockerfile:1", text="RUN pip install -r base.txt")
    with reading_once():
        found = [included(line, "base.txt", tmp_path) for _ in range(3)]
    assert [(len(one.settings), len(one.packages)) for one in found] == [(1, 1), (0, 0), (0, 0)]
    assert found[0].settings[0].value == "base.txt"


def many_links(folder: Path) -> None:
    (folder / "base.txt").write_text("# filler\n" * 100_000)
    for number in range(100):
        (folder / f"l{number}.txt").symlink_to("base.txt")
    (folder / "r.txt").write_text("".join(f"-r l{number}.txt\n" for number in range(100)))


def many_lines(folder: Path) -> None:
    for number in range(3):
        (folder / f"m{number}.txt").write_text("a\n" * 9_000)
    (folder / "r.txt").write_text("-r m0.txt\n-r m1.txt\n-r m2.txt\n")


def pipe_below(folder: Path) -> None:
    os.mkfifo(folder / "p.txt")
    (folder / "r.txt").write_text("-r p.txt\n")


def two_gigabytes(folder: Path) -> None:
    (folder / "r.txt").touch()
    os.truncate(folder / "r.txt", 2 << 30)


@pytest.mark.requirement("R61")
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (many_links, "more than 4 MiB of requirements files"),
        (many_lines, "more than 20000 requirements in all files"),
        (pipe_below, "is a pipe, not a regular file"),
        (two_gigabytes, "larger than 1048576 bytes"),
        (lambda folder: os.mkfifo(folder / "r.txt"), "is a pipe, not a regular file"),
        (lambda folder: (folder / "r.txt").symlink_to("/dev/zero"), "is outside the folder"),
        (lambda folder: (folder / "r.txt").mkdir(), "is a directory"),
        (lambda folder: (folder / "r.txt").write_text("a==" + "1" * 200_000), "a requirement of 200003 characters"),
        (lambda folder: (folder / "r.txt").write_text("a\\\n" * 99_000), "a requirement of 198000 characters"),
        (lambda folder: (folder / "r.txt").write_text("\n" * 100_001), "more than 100000 lines"),
    ],
)
def test_requirements_of_someone_else_end_within_a_limit(
    make: Callable[[Path], None], what: str, tmp_path: Path
) -> None:
    make(tmp_path)
    before = time.process_time()
    with pytest.raises(UsageError, match=what):
        read("r.txt", tmp_path)
    assert time.process_time() - before < 2


@pytest.mark.requirement("R4")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"einops; python_version < '{'9' * 5000}'", "its marker cannot be evaluated"),
        (f"einops=={'9' * 5000}", "longer than"),
        (f"torch=={'9' * 5000}", "is not a version of torch"),
        (f"einops; {'(' * 3000}python_version < '3'{')' * 3000}", "is not a requirement"),
        (f"torch==2.1.0+cu{'1' * 5000}", "is neither a CUDA build nor the CPU build"),
    ],
)
def test_numbers_and_nesting_without_end_are_left_out(text: str, why: str) -> None:
    assert [why in one.why for one in sort(lines(text)).skipped] == [True]


@pytest.mark.requirement("R61")
@pytest.mark.parametrize("spec", ["einops>=0.7", "einops>=0.{}", "einops==0.{}"])
def test_many_constraints_on_one_package_are_compared_in_time(spec: str) -> None:
    before = time.process_time()
    sort(lines(*(spec.format(number) for number in range(5000))))
    assert time.process_time() - before < 4
