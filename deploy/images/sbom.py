# SPDX-License-Identifier: Apache-2.0
"""Describes the contents of an image, wheels and Debian packages, as a CycloneDX document."""

import hashlib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from locking import metadata_of
from packageurl import PackageURL


def document(
    title: str, version: str, wheels: Iterable[Path], debian: Iterable[str], *, epoch: int
) -> str:
    """Return the document; the same contents and time give the same bytes.

    `debian` holds lines of `dpkg-query -W -f '${Package} ${Version} ${Architecture}\\n'`.
    """
    components = [*map(_of_wheel, sorted(wheels)), *map(_of_debian, sorted(debian))]
    names = "\n".join(str(one.bom_ref.value) for one in components)
    subject = Component(
        name=title, version=version, type=ComponentType.CONTAINER, bom_ref=f"{title}@{version}"
    )
    bom = Bom(
        components=components,
        metadata=BomMetaData(component=subject, timestamp=datetime.fromtimestamp(epoch, UTC)),
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, f"{title} {version}\n{names}"),
    )
    bom.register_dependency(subject, components)
    return f"{JsonV1Dot6(bom).output_as_string(indent=1)}\n"


def _of_wheel(wheel: Path) -> Component:
    metadata = metadata_of(wheel)
    version = str(metadata.version)
    url = PackageURL("pypi", name=metadata.name.lower().replace("_", "-"), version=version)
    licences: list[LicenseExpression | DisjunctiveLicense] = []
    if metadata.license_expression:
        licences = [LicenseExpression(str(metadata.license_expression))]
    elif metadata.license and "\n" not in metadata.license:
        licences = [DisjunctiveLicense(name=metadata.license)]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Component(
        name=metadata.name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        licenses=licences,
        description=metadata.summary,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        properties=[Property(name="cometmq:wheel", value=wheel.name)],
    )


def _of_debian(line: str) -> Component:
    name, version, architecture = line.split()
    qualifiers = {"arch": architecture}
    url = PackageURL("deb", "debian", name=name, version=version, qualifiers=qualifiers)
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url)
    )
