"""Which generated pages does the site have?"""

from __future__ import annotations

from sitegen.benchmarks import benchmark_page
from sitegen.commands import command_pages
from sitegen.configuration import configuration_page
from sitegen.contract_errors import contract_errors_page
from sitegen.errors import error_pages
from sitegen.http_api import api_pages
from sitegen.operations import operations_page
from sitegen.papers import papers_page
from sitegen.peer_codes import peer_codes_page


def generated() -> dict[str, str]:
    """Path below the docs folder → content."""
    return {
        **error_pages(),
        **contract_errors_page(),
        **peer_codes_page(),
        **command_pages(),
        **configuration_page(),
        **api_pages(),
        **papers_page(),
        **benchmark_page(),
        **operations_page(),
    }
