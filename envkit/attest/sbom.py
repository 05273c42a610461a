"""The SBOM of an image: CycloneDX 1.6 JSON, the same bytes for the same image and lock.

The only module that knows `cyclonedx-python-lib` and the package URLs it brings along.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from envkit import __version__
from envkit.ground.errors import EnvironmentProblem
from envkit.image.packages import CONDA, DEB, PYPI, RPM
from envkit.image.spec import CREATED, LABEL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License

    from envkit.attest.subject import Subject
    from envkit.image.packages import Installed

_NAMESPACE = uuid.UUID("6f2a5f0e-6b0d-5c35-9d0f-5b7f2f3f9f11")  # of serial numbers: any constant will do


def require() -> None:
    """See that the library is installed.

    Raises:
        EnvironmentProblem: it is not.
    """
    try:
        import cyclonedx  # noqa: F401, PLC0415
    except ImportError as error:
        raise EnvironmentProblem(
            "writing an SBOM needs the package cyclonedx-python-lib, which is not installed",
            hint="pip install 'envkit[attest]'",
        ) from error


def bill(
    subject: Subject,
    packages: Sequence[Installed],
    *,
    system: tuple[str, str | None],
    absent: Sequence[str] = (),
    rpm: bool = False,
) -> dict[str, Any]:
    """The document as a JSON tree.

    Args:
        subject: the image.
        packages: what is installed in it.
        system: whose packages those of dpkg are, for their URLs: 'debian' and its codename, None where not known.
        absent: what the lock names and the image lacks.
        rpm: the image has RPM packages that are not among `packages`.

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
        serial_number=uuid.uuid5(_NAMESPACE, subject.digest),
        metadata=BomMetaData(
            component=image,
            timestamp=_moment(subject.config),
            tools=[],
            properties=[Property(name=f"{LABEL_PREFIX}:version", value=__version__), *notes],
        ),
    )
    bom.register_dependency(image, components)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    tree: dict[str, Any] = json.loads(text)
    return tree


def purl(one: Installed, system: tuple[str, str | None]) -> str:
    """The package URL of an installed package: `pkg:conda/numpy@2.4.6?build=...&channel=conda-forge&...`."""
    from packageurl import PackageURL  # noqa: PLC0415

    given: dict[str, str | None] = {}
    if one.kind == CONDA:
        file = (one.url or "").rpartition("/")[2]
        archive = next((kind for kind in ("conda", "tar.bz2") if file.endswith(f".{kind}")), None)
        given = {"build": one.build, "channel": one.channel, "subdir": one.subdir, "type": archive}
    elif one.kind == DEB:
        given = {"arch": one.arch, "distro": system[1]}
    version = one.version
    if one.kind == RPM:
        epoch, _, version = one.version.rpartition(":")
        given = {"arch": one.arch, "epoch": epoch}
    namespace = system[0] if one.kind in (DEB, RPM) else None
    qualifiers = {key: value for key, value in given.items() if value}
    return PackageURL(one.kind, namespace, one.name, version, qualifiers).to_string()


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
    """As an SPDX id or expression where it is one, else by its name."""
    from cyclonedx.contrib.license.factories import LicenseFactory  # noqa: PLC0415

    return LicenseFactory().make_from_string(text) if text else None


def _moment(config: Mapping[str, Any]) -> datetime:
    """When the image says that it was made, so that the same image always has the same bill."""
    try:
        moment = datetime.fromisoformat(str(config.get("created") or CREATED))
    except ValueError:
        moment = datetime.fromisoformat(CREATED)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def counts(tree: Mapping[str, Any]) -> dict[str, int]:
    """How many packages of each kind a bill lists."""
    totals = {CONDA: 0, PYPI: 0, DEB: 0}
    rows = tree.get("components")
    for row in rows if isinstance(rows, list) else ():
        kind = str(row.get("purl") if isinstance(row, dict) else "").removeprefix("pkg:").partition("/")[0]
        totals[kind] = totals.get(kind, 0) + 1
    return totals
