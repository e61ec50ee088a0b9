"""Writes the list of parts that travels in the wheel: what is locked, as a CycloneDX document (PEP 770).

The same tree gives the same bytes, so that wheels can be compared.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from release.licences import read_page
from release.lock import DEVELOPMENT, installable, packages_by_extra, read_project


def parts(root: Path, *, at: datetime) -> str:
    """Return the document for the tree in a folder.

    :param at: When it says that it was made.
    """
    project = read_project(root)["project"]
    bom = Bom()
    bom.metadata.timestamp = at.astimezone(UTC)
    whole = _component(project["name"], project["version"], ComponentType.LIBRARY)
    whole.description = project["description"]
    bom.metadata.component = whole

    brought = {extra: names for extra, names in packages_by_extra(root).items() if extra not in DEVELOPMENT}
    known = read_page(root)
    of: dict[str, list[Component]] = {}
    for each in installable(root):
        extras = [extra for extra, names in brought.items() if each.name in names]
        if extras:
            part = _component(each.name, each.version, ComponentType.LIBRARY)
            part.scope = ComponentScope.REQUIRED if "" in extras else ComponentScope.OPTIONAL
            part.licenses = [LicenseFactory().make_from_string(known[each.name])]
            part.properties = [Property(name="queuekeeper:extra", value=extra) for extra in extras if extra]
            of.setdefault(each.name, []).append(part)
            bom.components.add(part)

    children: dict[str, list[Component]] = {}
    for each in installable(root):
        for parent in each.wanted_by:
            children.setdefault(parent, []).extend(of.get(each.name, ()))
    for name, components in of.items():
        for component in components:
            bom.register_dependency(component, children.get(name, ()))
    bom.register_dependency(whole, children.get(project["name"], ()))
    bom.serial_number = uuid5(NAMESPACE_URL, repr(sorted(str(part.purl) for part in [whole, *bom.components])))
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1) + "\n"


def _component(name: str, version: str, kind: ComponentType) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    return Component(type=kind, name=name, version=version, purl=purl, bom_ref=str(purl))
