"""The SBOM of an image: CycloneDX 1.6 JSON, with the same bytes for the same image and lock.

The only module that imports `cyclonedx-python-lib` and `packageurl`, which comes with it.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from envkit import __version__
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.installation import libraries
from envkit.ground.naming import LABEL_PREFIX
from envkit.image.packages import CONDA, DEB, PYPI, RPM
from envkit.image.spec import CREATED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License

    from envkit.attest.subject import Subject
    from envkit.image.packages import Installed

_NAMESPACE = uuid.UUID("6f2a5f0e-6b0d-5c35-9d0f-5b7f2f3f9f11")  # for serial numbers; an arbitrary constant


def require() -> None:
    """Check that the library is installed.

    Raises:
        EnvironmentProblem: the library is not installed.
    """
    try:
        import cyclonedx  # noqa: F401, PLC0415
    except ImportError as error:
        raise EnvironmentProblem(
            "writing an SBOM needs the package cyclonedx-python-lib, which is not installed",
            hint=libraries("attest"),
        ) from error


def bill(
    subject: Subject,
    packages: Sequence[Installed],
    *,
    system: tuple[str, str | None],
    absent: Sequence[str] = (),
    rpm: bool = False,
) -> dict[str, Any]:
    """Return the SBOM as a JSON tree.

    Args:
        subject: the image.
        packages: the installed packages.
        system: distribution and codename for the URLs of system packages, such as 'debian' and 'bookworm'; a codename
            of None is unknown.
        absent: packages of the lock that are not in the image.
        rpm: the image has RPM packages that are not in `packages`.

    Raises:
        EnvironmentProblem: the library is missing.
    """
    require()
    from cyclonedx.model import Property  # noqa: PLC0415 - the library is an extra, and slow to import
    from cyclonedx.model.bom import Bom, BomMetaData  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.output import make_outputter  # noqa: PLC0415
    from cyclonedx.schema import OutputFormat, SchemaVersion  # noqa: PLC0415

    image = Component(
        name=subject.reference.place,
        version=subject.digest,
        type=ComponentType.CONTAINER,
        bom_ref=subject.digest,
        properties=[Property(name="oci:image:configDigest", value=subject.id)],
    )
    notes = [Property(name=f"{LABEL_PREFIX}:absent", value=missing) for missing in absent]
    if rpm:
        notes.append(Property(name=f"{LABEL_PREFIX}:incomplete", value="RPM packages are not listed"))
    components = [_component(package, system) for package in packages]
    bom = Bom(
        components=components,
        # Derived from the digest: a random one would change the bytes of the SBOM.
        serial_number=uuid.uuid5(_NAMESPACE, subject.digest),
        metadata=BomMetaData(
            component=image,
            timestamp=_created(subject.config),
            tools=[],
            properties=[Property(name=f"{LABEL_PREFIX}:version", value=__version__), *notes],
        ),
    )
    bom.register_dependency(image, components)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    tree: dict[str, Any] = json.loads(text)
    return tree


def purl(package: Installed, system: tuple[str, str | None]) -> str:
    """Return the URL of an installed package: `pkg:conda/numpy@2.4.6?build=...&channel=conda-forge&...`."""
    from packageurl import PackageURL  # noqa: PLC0415

    fields: dict[str, str | None] = {}
    if package.kind == CONDA:
        file = (package.url or "").rpartition("/")[2]
        archive = next((kind for kind in ("conda", "tar.bz2") if file.endswith(f".{kind}")), None)
        fields = {"build": package.build, "channel": package.channel, "subdir": package.subdir, "type": archive}
    elif package.kind == DEB:
        fields = {"arch": package.arch, "distro": system[1]}
    version = package.version
    if package.kind == RPM:
        # 1:3.2.2-6.el9: in package URLs of RPMs the epoch is a qualifier (purl-spec, rpm).
        epoch, _, version = package.version.rpartition(":")
        fields = {"arch": package.arch, "epoch": epoch}
    namespace = system[0] if package.kind in (DEB, RPM) else None
    qualifiers = {key: value for key, value in fields.items() if value}
    return PackageURL(package.kind, namespace, package.name, version, qualifiers).to_string()


def _component(package: Installed, system: tuple[str, str | None]) -> Component:
    from cyclonedx.model import (  # noqa: PLC0415
        ExternalReference,
        ExternalReferenceType,
        HashAlgorithm,
        HashType,
        Property,
        XsUri,
    )
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    name = purl(package, system)
    declared = _license(package.license)
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        # Without it, the library generates a random reference.
        bom_ref=name,
        purl=PackageURL.from_string(name),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)] if package.sha256 else [],
        licenses=[declared] if declared is not None else [],
        external_references=(
            [ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(package.url))] if package.url else []
        ),
        properties=[Property(name=f"{LABEL_PREFIX}:locked", value="true" if package.locked else "false")],
    )


def _license(text: str | None) -> License | None:
    """Return a license as an SPDX ID or expression if it is one, else by its name."""
    from cyclonedx.contrib.license.factories import LicenseFactory  # noqa: PLC0415

    return LicenseFactory().make_from_string(text) if text else None


def _created(config: Mapping[str, Any]) -> datetime:
    """Return the creation time of the image; not the current time, so that an image always has the same SBOM."""
    try:
        created = datetime.fromisoformat(str(config.get("created") or CREATED))
    except ValueError:
        created = datetime.fromisoformat(CREATED)
    return created if created.tzinfo else created.replace(tzinfo=UTC)


def counts(tree: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of packages by kind in an SBOM."""
    totals = {CONDA: 0, PYPI: 0, DEB: 0}
    rows = tree.get("components")
    for row in rows if isinstance(rows, list) else ():
        kind = str(row.get("purl") if isinstance(row, dict) else "").removeprefix("pkg:").partition("/")[0]
        totals[kind] = totals.get(kind, 0) + 1
    return totals
