"""Which generated pages and files does the site have?"""

from __future__ import annotations

from sitegen.benchmarks import benchmark_page
from sitegen.commands import command_pages, schema_files
from sitegen.configuration import configuration_page
from sitegen.contract_errors import contract_errors_page
from sitegen.errors import error_pages
from sitegen.http_api import api_pages
from sitegen.operations import operations_page
from sitegen.papers import papers_page
from sitegen.peer_codes import peer_codes_page

#: Pages of wide tables, which need the room of the table of contents.
WIDE = ("papers.md", "reference/configuration.md", "errors/contracts.md", "errors/peers.md")


def generated() -> dict[str, str]:
    """Path below the docs folder → content."""
    pages = {
        **error_pages(),
        **contract_errors_page(),
        **peer_codes_page(),
        **command_pages(),
        **schema_files(),
        **configuration_page(),
        **api_pages(),
        **papers_page(),
        **benchmark_page(),
        **operations_page(),
    }
    for path in WIDE:
        pages[path] = f"---\nhide:\n  - toc\n---\n\n{pages[path]}"
    return pages
