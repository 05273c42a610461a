"""Every rule is silent on what envkit renders (tests/golden) and speaks up on what it is for."""

from dataclasses import replace
from pathlib import Path

import pytest

from envkit.ground.errors import UsageError
from envkit.render import lint
from envkit.render.lint import Finding
from envkit.render.model import Rendered
from envkit.render.render import render
from tests.support.plans import context, shipped_plan

END = 'CMD ["python"]\n'
PIP = "--no-cache-dir --only-binary=:all: -r torch.txt"


def changed(made: Rendered, name: str, old: str, new: str) -> Rendered:
    text = made.files[name].decode()
    assert old in text, f"{name} has no {old!r}"
    return replace(made, files=made.files | {name: text.replace(old, new).encode()})


def found(made: Rendered) -> set[str]:
    return {item.rule for item in lint.check(made) if item.severity == "error"}


MUTATIONS = [
    ("D1", "Dockerfile", "FROM docker.io/library/debian:bookworm-slim AS", "FROM debian:bookworm-slim AS"),
    ("D2", "Dockerfile", "FROM docker.io/library/debian:bookworm-slim AS", "FROM --platform=x docker.io/a/b:1 AS"),
    ("D2", "Dockerfile", "FROM docker.io/library/debian:bookworm-slim AS", "FROM docker.io/library/${BASE} AS"),
    ("D3", "Dockerfile", "# Generated", "# syntax=registry.example.com/evil\n# Generated"),
    ("D3", "Dockerfile", "# Generated", "# escape=`\n# Generated"),
    ("D4", "condarc", "channel_priority: strict", "channel_priority: flexible"),
    ("D4", "condarc", "safety_checks: enabled", "safety_checks: warn"),
    ("D4", "environment.yml", "  - conda-forge\n", "  - conda-forge\n  - nodefaults\n"),
    ("D4", "environment.yml", "  - conda-forge\n", "  - defaults\n"),
    ("D5b", "environment.yml", '      - "--only-binary=:all:"\n', ""),
    ("D5b", "environment.yml", "torch==", "torch>="),
    ("D5b", "environment.yml", "      - torch==", "      - --extra-index-url https://x.example.com\n      - torch=="),
    ("D5b", "environment.yml", "      - torch==", '      - "--index-url https://x.example.com"\n      - torch=='),
    ("D7", "Dockerfile", "sha256sum -c miniconda.sha256", "true"),
    ("D7", "Dockerfile", "curl --disable", "curl -k --disable"),
    ("D7", "Dockerfile", "COPY condarc", "ADD https://mirror.example.com/x y\nCOPY condarc"),
    ("D8", ".dockerignore", "**\n", ""),
    ("D8", ".dockerignore", "!entry.sh\n", ""),
    ("D9", "Dockerfile", "chmod 1777 .", "chmod 1777 . # PyTorch with CUDA 12.6, for GPUs from Maxwell on"),
    ("D9", "Dockerfile", "WORKDIR /build", "# torchvision==0.29.1+cu126\nWORKDIR /build"),
    ("D10", "Dockerfile", 'LANG="C.UTF-8"', "LANG C.UTF-8"),
    ("D10", "Dockerfile", 'LANG="C.UTF-8"', 'LANG="C\u202eUTF-8"'),
    ("D12", "Dockerfile", "WORKDIR /workspace", "ARG TOKEN=1\nWORKDIR /workspace"),
    ("D12", "Dockerfile", 'LANG="C.UTF-8"', 'MY_TOKEN="x"'),
    ("D12", "Dockerfile", 'LANG="C.UTF-8"', 'CONDA_TOKEN="x"'),
    ("D12", "Dockerfile", 'LANG="C.UTF-8"', 'X="https://me:pw@example.com"'),
    ("D14", "Dockerfile", 'LANG="C.UTF-8"', 'X="$HOME"'),
    ("D15", "Dockerfile", "COPY --from=build /opt/env /opt/env", "COPY --from=build /opt/env /env"),
    ("D16", "Dockerfile", "    /opt/conda/bin/conda clean -afy; \\\n", ""),
    ("D18", "Dockerfile", "COPY condarc", "COPY --chmod=755 condarc"),
    ("D18", "Dockerfile", "RUN set -eu; \\\n    chmod", "RUN --mount=type=cache,target=/x set -eu; \\\n    chmod"),
    ("D18", "Dockerfile", "RUN set -eu; \\\n    chmod 1777 .", "RUN <<EOF\nchmod 1777 .\nEOF"),
    ("D23", "Dockerfile", "WORKDIR /workspace", "WORKDIR /proc/self/fd/8"),
    ("D23", "Dockerfile", "chmod 1777 .", "cd / ; chmod 1777 ."),
    ("D24", "Dockerfile", END, END + 'CMD ["x"]\n'),
    ("D24", "Dockerfile", END, "ONBUILD RUN set -eu;\n" + END),
    ("D25", "Dockerfile", "WORKDIR /workspace", "workdir /workspace"),
    ("D25", "Dockerfile", "bookworm-slim AS build", "bookworm-slim AS Build"),
    ("D26", "Dockerfile", "set -eu; \\\n    chmod", "chmod"),
    ("D26", "Dockerfile", "chmod 1777 .", "cat x | chmod 1777 ."),
    ("D27", "Dockerfile", "RUN set -eu; \\\n    chmod", "RUN --network=host set -eu; \\\n    chmod"),
    ("D27", "Dockerfile", "RUN set -eu; \\\n    chmod", "RUN --security=insecure set -eu; \\\n    chmod"),
    ("D28", "Dockerfile", "USER 1000:1000", "USER root"),
    ("D28", "Dockerfile", "USER 1000:1000", "USER 0:0"),
    ("D28", "Dockerfile", "USER 1000:1000\n", ""),
    ("D30", "Dockerfile", 'TORCH_HOME="', 'OTHER="'),
    ("D30", "Dockerfile", 'PYTHONDONTWRITEBYTECODE="1"', 'PYTHONDONTWRITEBYTECODE="0"'),
    ("D32", "Dockerfile", 'PATH="/opt/env/bin:', 'PATH="/usr/bin:/opt/env/bin:'),
    ("D32", "Dockerfile", 'CONDA_PREFIX="', 'OTHER="'),
    ("D34", "Dockerfile", 'CMD ["python"]', "CMD python"),
    ("D34", "Dockerfile", 'CMD ["python"]', 'CMD ["conda", "run", "python"]'),
    ("D36", "Dockerfile", '"/opt/env/bin/tini", "-g", "--", ', ""),
    ("D36", "Dockerfile", "STOPSIGNAL SIGTERM", "STOPSIGNAL SIGKILL"),
    ("D39", "Dockerfile", "\nFROM docker.io/library/debian:bookworm-slim", "\nFROM docker.io/nvidia/cuda:12-devel-x"),
    ("D40", "Dockerfile", 'LANG="C.UTF-8"', 'LD_LIBRARY_PATH="/usr/local/cuda/lib64"'),
    ("D43", "Dockerfile", 'NVIDIA_VISIBLE_DEVICES="all"', 'NVIDIA_VISIBLE_DEVICES="void"'),
    ("D43", "Dockerfile", '"compute,utility"', '"compute,utilities"'),
    ("D44", "Dockerfile", '"cuda>=12.6 ', '"drvier>=535 '),
    ("D44", "Dockerfile", "NVIDIA_REQUIRE_CUDA", "NVIDIA_REQUIRE_OTHER"),
    ("D44", "Dockerfile", 'LANG="C.UTF-8"', 'CUDA_VERSION="12.6"'),
    ("D46", "Dockerfile", 'LANG="C.UTF-8"', 'LD_PRELOAD="/x.so"'),
    ("D46", "Dockerfile", 'LANG="C.UTF-8"', 'NVIDIA_DISABLE_REQUIRE="true"'),
    ("D47", "Dockerfile", 'LANG="C.UTF-8"', 'CONDA_OVERRIDE_CUDA="12.6"'),
    ("D47", "Dockerfile", 'CONDA_OVERRIDE_CUDA="12.6"', 'CONDA_OVERRIDE_CUDA="12.8"'),
    ("D47", "Dockerfile", 'CONDA_OVERRIDE_CUDA="12.6"', 'OTHER="12.6"'),
    ("D54", "Dockerfile", "STOPSIGNAL SIGTERM", "STOP SIGTERM"),
    ("D54", "Dockerfile", "STOPSIGNAL SIGTERM", "ONBUILD USER 0"),
    ("D55", "Dockerfile", "COPY --from=build /opt/env", "COPY --from=registry.example.com/x:1 /opt/env"),
    ("D49", "Dockerfile", "org.opencontainers.image.title", "org.example.title"),
    ("D49", "Dockerfile", '"envkit.plan"', '"envkit.plans"'),
    ("D53", "environment.yml", "\n", "\r\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "name", "old", "new"), MUTATIONS, ids=[f"{row[0]}-{i}" for i, row in enumerate(MUTATIONS)]
)
def test_a_rule_fires(rule: str, name: str, old: str, new: str) -> None:
    made = context()
    assert rule not in found(made)
    assert rule in found(changed(made, name, old, new))


BUILDKIT = [
    ("D55", "RUN --mount=type=cache,id=envkit-pip", "RUN --mount=FROM=registry.example.com/x,target=/x,id=envkit-pip"),
    ("D13", "target=/root/.netrc", "target=/run/secrets/token"),
    ("D17", "sharing=locked", "sharing=shared"),
    ("D5", "--only-binary=:all:", "--prefer-binary"),
]


@pytest.mark.parametrize(("rule", "old", "new"), BUILDKIT)
def test_a_rule_fires_on_buildkit(rule: str, old: str, new: str) -> None:
    made = context("jupyter", "wheels", "buildkit")
    assert rule not in found(made)
    assert rule in found(changed(made, "Dockerfile", old, new))


def test_pip_downloads_stay_out_of_the_layer() -> None:
    made = context("cu126", "wheels")
    assert "D5" in found(changed(made, "Dockerfile", PIP, PIP.replace("--no-cache-dir ", "")))
    assert "D5" in found(changed(made, "Dockerfile", PIP, PIP + " --extra-index-url https://x.example.com"))


def test_tini_of_a_locked_environment_is_used() -> None:
    made = context()
    files = dict(made.files)
    del files["environment.yml"]
    files["explicit.txt"] = b"@EXPLICIT\nhttps://conda.example.com/linux-64/tini-0.19.0-h1.conda\n"
    unused = files["Dockerfile"].replace(b'"/opt/env/bin/tini", "-g", "--", ', b"")
    assert "D36" not in found(replace(made, files=files))
    assert "D36" in found(replace(made, files=files | {"Dockerfile": unused}))


def test_every_rule_has_a_test_that_makes_it_fire() -> None:
    tested = {row[0] for row in MUTATIONS} | {row[0] for row in BUILDKIT}
    assert tested == set(lint.RULES)


def test_a_tag_is_a_warning_and_a_digest_is_silent() -> None:
    plan = shipped_plan("cu126")
    tagged = [item for item in lint.check(render(plan)) if item.rule == "D1"]
    assert {item.severity for item in tagged} == {"warning"}
    pinned = "registry.example.com/debian:12@sha256:" + "a" * 64
    assert [item for item in lint.check(render(plan, base=pinned, build_base=pinned)) if item.rule == "D1"] == []
    local = "sha256:" + "b" * 64
    assert [item for item in lint.check(render(plan, base=local, build_base=local)) if item.rule == "D1"] == []


@pytest.mark.requirement("R8")
def test_a_users_template_cannot_switch_protections_off() -> None:
    lint.refuse_unsafe(context())
    with pytest.raises(
        UsageError, match=r"the Dockerfile of the template breaks a rule: Dockerfile:1: error D3"
    ) as caught:
        lint.refuse_unsafe(changed(context(), "Dockerfile", "# Generated", "# syntax=x\n# Generated"))
    assert caught.value.hint == "envkit render --check lists every finding"


# Lines that Docker takes for dangerous ones and that a reader by regular expressions does not.
DISGUISED = [
    ("D10", "ENV LD_PRELOAD /x.so"),
    ("D46", 'ENV\tLD_PRELOAD="/x.so"'),
    ("D46", "ENV 'LD_PRELOAD'='/x.so'"),
    ("D46", "ENV LD_PREL\\OAD=/x.so"),
    ("D46", "ENV LD_PREL\\\nOAD=/x.so"),
    ("D10", 'ENV A="LD_PRELOAD"\nENV $A="/x.so"'),
    ("D40", 'ENV A="b" \\\n\n  LD_LIBRARY_PATH="/x"'),
    ("D40", 'ENV A="/x"\nENV LD_LIBRARY_PATH=$A'),
    ("D12", 'ENV A="me:pw@"\nENV B="https://${A}example.com"'),
    ("D12", "ARG\tTOKEN"),
    ("D27", "RUN\t--security=insecure set -eu; id"),
    ("D27", 'RUN --sec"uri"ty=insecure set -eu; id'),
    ("D28", "USER\t0"),
    ("D28", "user 0"),
    ("D28", "USER 1000:1000\nFROM build"),
    ("D7", "ADD https://example.com/x /x"),
    ("D7", "RUN set -eu; cu\\\nrl https://example.com/x"),
    ("D54", "RUN <<EOF\nUSER 0\nEOF"),
]


@pytest.mark.requirement("R8")
@pytest.mark.parametrize(("rule", "line"), DISGUISED)
def test_dangerous_lines_are_known_in_every_disguise(rule: str, line: str) -> None:
    made = changed(
        context("jupyter", "wheels", "buildkit"), "Dockerfile", "USER 1000:1000\n", f"USER 1000:1000\n{line}\n"
    )
    with pytest.raises(UsageError) as caught:
        lint.refuse_unsafe(made)
    assert any(f"error {rule}: " in text for text in (caught.value.message, *caught.value.details))


def test_a_finding_as_text() -> None:
    assert str(Finding(rule="D9", line=3, message="m", severity="error")) == "Dockerfile:3: error D9: m"
    assert str(Finding(rule="D4", line=0, message="m", severity="warning")) == "build context: warning D4: m"


def test_docs_explain_every_rule() -> None:
    docs = (Path(lint.__file__).parents[2] / "docs" / "templates.md").read_text()
    for rule in lint.RULES:
        always = " *always*" if rule in lint.UNSAFE else ""
        assert f"\n| {rule}{always} | " in docs
