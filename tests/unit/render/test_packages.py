"""Mirrors of system packages reach apt-get and yum, and leave nothing in the image."""

import pytest

from envkit.ground.errors import UsageError
from envkit.ground.settings import Mirrors
from envkit.render import lint
from envkit.render.model import SYNTAXES
from envkit.render.packages import LAYOUTS, package_files
from envkit.render.render import render
from tests.support.plans import facts, plan_from, shipped_plan

DEBIAN = Mirrors(debian_mirror="http://debian.example.com/debian/")
RPM = Mirrors(rpm_mirror="https://rpm.example.com/tree")
OLD = """request: {os: centos7, cuda: "11.8"}
rpm: [git]
features: [ssh]
"""


def test_without_mirrors_the_images_own_sources_hold() -> None:
    assert package_files(shipped_plan("jupyter"), Mirrors()) == {}
    assert package_files(shipped_plan("rocky9"), Mirrors()) == {}


def test_a_mirror_of_debian_replaces_every_source() -> None:
    files = package_files(shipped_plan("jupyter"), DEBIAN)
    assert files["apt-sources.list"].splitlines() == [
        f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://debian.example.com/debian {suite} main"
        for suite in ("CODENAME", "CODENAME-updates")
    ]
    assert 'Dir::Etc::SourceParts "-";' in files["apt.conf"]
    assert "CAInfo" not in files["apt.conf"]


def test_the_security_archive_has_a_mirror_of_its_own() -> None:
    both = Mirrors(
        debian_mirror="https://a.example.com/debian", debian_security_mirror="https://a.example.com/security"
    )
    last = package_files(shipped_plan("jupyter"), both)["apt-sources.list"].splitlines()[-1]
    assert last.split()[-3:] == ["https://a.example.com/security", "CODENAME-security", "main"]


def test_ubuntu_has_its_own_setting() -> None:
    plan = plan_from("request: {os: ubuntu22.04}\n")
    assert package_files(plan, DEBIAN) == {}
    found = package_files(plan, Mirrors(ubuntu_mirror="https://ubuntu.example.com/ubuntu"))["apt-sources.list"]
    assert [line.split()[3:] for line in found.splitlines()] == [
        [f"CODENAME{pocket}", "main", "universe"] for pocket in ("", "-updates", "-security")
    ]
    assert "ubuntu-archive-keyring.gpg" in found


def test_centos_7_installs_from_the_vault() -> None:
    """Its own list of mirrors is offline, so a plain `yum install` could not work."""
    made = render(plan_from(OLD))
    text = made.files["yum.conf"].decode()
    assert "baseurl=http://vault.centos.org/7.9.2009/os/$basearch/\n" in text
    assert "baseurl=http://vault.centos.org/7.9.2009/updates/$basearch/\n" in text
    assert "gpgcheck=1\n" in text
    assert "reposdir=/usr/share/envkit/no.repos.d\n" in text, "the repositories of the image are not asked"
    docker = made.files["Dockerfile"].decode()
    assert "yum -c /usr/share/envkit/yum.conf install -y" in docker
    assert "yum install" not in docker


def test_another_architecture_of_centos_7_is_elsewhere() -> None:
    plan = plan_from("request: {os: centos7, cpu: true, platform: linux-aarch64}\nrpm: [git]\n")
    assert "/altarch/7.9.2009/os/" in package_files(plan, Mirrors())["yum.conf"]


def test_a_mirror_replaces_the_vault_and_the_repositories_of_an_image() -> None:
    old = package_files(plan_from(OLD), RPM)["yum.conf"]
    assert "vault" not in old
    assert "baseurl=https://rpm.example.com/tree/7.9.2009/os/$basearch/" in old
    new = package_files(shipped_plan("rocky9"), RPM)["yum.conf"]
    assert "baseurl=https://rpm.example.com/tree/9/BaseOS/$basearch/os/" in new
    assert "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9" in new


def test_every_rpm_system_of_the_facts_has_a_layout() -> None:
    assert {row.id for row in facts().oses if row.family == "rpm"} <= set(LAYOUTS)


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize(
    ("body", "mirrors", "names"),
    [
        ("request: {cpu: true}\napt: [git]\n", DEBIAN, ("apt.conf", "apt-sources.list")),
        (OLD, Mirrors(), ("yum.conf",)),
    ],
)
def test_what_leads_to_a_mirror_is_removed_by_the_step_that_uses_it(
    body: str, mirrors: Mirrors, names: tuple[str, ...], syntax: str
) -> None:
    made = render(plan_from(body), mirrors=mirrors, syntax=syntax)
    docker = made.files["Dockerfile"].decode()
    final = docker[docker.rindex("\nFROM ") :]
    for name in names:
        assert name in made.files
        assert f"!{name}\n" in made.files[".dockerignore"].decode()
        step = next(step for step in final.split("\nRUN ") if f"/usr/share/envkit/{name}" in step)
        removed = step[step.index("rm -rf ") :].partition("\n")[0].split()
        assert f"/usr/share/envkit/{name}" in removed
    assert {finding.rule for finding in lint.check(made)} <= {"D1"}, "the base is named by a tag"


def test_certificates_reach_the_step_too() -> None:
    mirrors = Mirrors(debian_mirror="https://debian.example.com/debian", ca_bundle="/etc/example.pem")
    made = render(plan_from("request: {cpu: true}\napt: [git]\n"), mirrors=mirrors)
    assert 'Acquire::https::CAInfo "/usr/share/envkit/ca-bundle.pem";' in made.files["apt.conf"].decode()
    assert "COPY apt-sources.list apt.conf ca-bundle.pem /usr/share/envkit/" in made.files["Dockerfile"].decode()


@pytest.mark.parametrize("url", ["https://me:secret@mirror.example.com/debian", "mirror.example.com", "https://a b"])
def test_a_mirror_is_a_url_without_a_login(url: str) -> None:
    with pytest.raises(UsageError, match="debian_mirror: "):
        package_files(shipped_plan("jupyter"), Mirrors(debian_mirror=url))
