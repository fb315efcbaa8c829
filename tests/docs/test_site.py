"""Is the site whole: built without a warning, with nothing from elsewhere, every link leading
somewhere, and a place for everything?
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from tests.docs.conftest import ROOT, Site
from tests.schemas import PROGRAMS, every_schema, schemas_of_program


def test_no_page_loads_anything_from_another_host(site: Site) -> None:
    assert len(site.pages) > 80
    for page, found in site.pages.items():
        foreign = [address for address in found.loaded if urlsplit(address).netloc]
        assert not foreign, (page, foreign)
    for sheet in site.folder.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", sheet.read_text()):
            assert address.startswith(("data:", "#")) or not urlsplit(address).netloc, (
                sheet,
                address,
            )


def test_nothing_on_a_page_makes_the_theme_fetch_its_diagram_program(site: Site) -> None:
    """The theme's script would load that one from a public host for elements of this class."""
    for path in site.folder.rglob("*.html"):
        assert 'class="mermaid"' not in path.read_text(), path


def test_every_link_leads_to_a_page_and_a_place_on_it(site: Site) -> None:
    broken = []
    for page, found in site.pages.items():
        if page == "404.html":
            continue  # its links are absolute, as it may be shown at any address
        for link in found.links:
            parts = urlsplit(link)
            if parts.netloc or parts.scheme:
                continue
            target = page
            if parts.path:
                joined = (site.folder / PurePosixPath(page).parent / unquote(parts.path)).resolve()
                target = str(joined.relative_to(site.folder.resolve()))
            if not (site.folder / target).is_file():
                broken.append((page, link))
            elif parts.fragment and target in site.pages:
                place = unquote(parts.fragment)
                if place not in site.pages[target].ids:
                    broken.append((page, link))
    assert not broken


def test_every_error_code_has_a_page_that_says_what_to_do(site: Site) -> None:
    from sitegen.errors import error_classes

    kinds = error_classes()
    assert len(kinds) > 55 and any(kind.__module__ == "client.gateway.errors" for kind in kinds)
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    index = site.text("errors/index.html")
    for code in codes:
        text = site.text(f"errors/{code}.html")
        for part in ("What happened.", "Why.", "What state things are in.", "What to do next."):
            assert part in text, (code, part)
        assert code in index


def test_every_code_that_is_written_anywhere_is_explained(site: Site) -> None:
    """Those of classes have a page; those that machines say to each other a line."""
    from sitegen.errors import error_classes
    from sitegen.peer_codes import peer_codes
    from sitegen.places import PACKAGES

    between, known = set(peer_codes()), {kind.code for kind in error_classes()}
    text = site.text("errors/peers.html")
    assert between and all(code in text for code in between) and not between & known
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            found = re.findall(
                r"[\"'](E-[A-Z]+(?:-[A-Z0-9]+)+)[\"']", path.read_text(encoding="utf-8")
            )
            assert set(found) <= known | between, (path, set(found) - known - between)


def test_every_error_of_the_contracts_is_listed(site: Site) -> None:
    from sitegen.contract_errors import contract_error_names

    names = contract_error_names()
    assert len(names) > 80
    text = site.text("errors/contracts.html")
    assert not {name for name in names if name not in text}


def test_every_command_of_every_program_is_in_the_reference(site: Site) -> None:
    from sitegen.commands import commands_of
    from sitegen.places import PROGRAMS

    total = 0
    for program in PROGRAMS:
        page = site.pages[f"reference/cli/{program}.html"]
        listed = commands_of(program)
        total += len(listed)
        assert f"{program} config show" in {one.path for one in listed}
        for one in listed:
            assert one.anchor in page.ids, one.path
            assert one.command.help, f"{one.path} has no help"
            for option in one.command.params:
                for name in option.opts if option.param_type_name == "option" else ():
                    shown = program if not option.rich_help_panel else "index"
                    if not getattr(option, "hidden", False):
                        assert name in site.text(f"reference/cli/{shown}.html"), (one.path, name)
    assert total > 70


def test_every_schema_is_a_file_of_the_site_and_linked_from_its_command(site: Site) -> None:
    from sitegen.commands import file_name

    for program in PROGRAMS:
        links = site.pages[f"reference/cli/{program}.html"].links
        hidden = {"headrace.miner.rotate-operator/1", "headrace.devnet.measure-generate/1"}
        for name in schemas_of_program(program).keys() - hidden:
            assert f"../../schemas/{file_name(name)}" in links, name
    for name, schema in every_schema().items():
        file = site.folder / "schemas" / file_name(name)
        assert json.loads(file.read_text()) == schema, name


def test_every_setting_is_in_the_reference_with_its_variable(site: Site) -> None:
    from sitegen.configuration import variable_of

    from core.runtime.settings import known_keys

    text = site.text("reference/configuration.html")
    for key in known_keys():
        assert key in text and variable_of(key) in text, key


def test_every_call_of_gateway_and_matcher_is_in_the_reference(site: Site) -> None:
    from sitegen.http_api import gateway_description, matcher_description, operations

    for page, description, least in (
        ("reference/gateway-api.html", gateway_description(), 15),
        ("reference/matcher-api.html", matcher_description(), 14),
    ):
        found = operations(description)
        assert len(found) >= least
        for method, path, operation in found:
            assert operation.get("description"), f"{method} {path} says nothing of itself"
            assert f"{method} {path}" in site.text(page)
        assert (site.folder / page).with_suffix(".json").is_file()


def test_every_benchmark_and_its_parts_have_their_command(site: Site) -> None:
    from sitegen.benchmarks import packages

    text = site.text("benchmarks.html")
    assert {"engine", "gateway", "scheduler"} <= set(packages())
    for package, parts in packages().items():
        assert f"python -m benchmarks.{package}" in text
        for part in parts:
            assert f"--only {part}" in text


def test_the_page_on_operations_is_the_file_of_the_operations_folder(site: Site) -> None:
    source = ROOT / "ops" / "README.md"
    assert source.is_file() == ("operations.html" in site.pages)
    if source.is_file():
        heads = re.findall(r"^#+ (.+)$", source.read_text(encoding="utf-8"), re.MULTILINE)
        text = site.text("operations.html")
        assert heads and all(head.replace("`", "") in text for head in heads)
