"""The dashboard: pages over one running gateway, for people.

`app`         the addresses: every page with its JSON twin and its live part
`page`        one page: its address, what it loads, its templates
`guard`       who may look, and who may change something
`pages`       what each page reads, from whom, before a view is made of it
`sources/`    where the values of the pages come from
`checks`      whether an answer holds: receipts recomputed, layers run again
`forward`     the gateway's own API, called with the owner's key
`views/`      the values of each page as its template reads them
`present`     how amounts, ages and ids look on a page
`pictures/`   drawings in SVG
`render`      a view as HTML, and the hashed addresses of the static files
`templates/`  the HTML of the pages
`static/`     style sheets, scripts and the icon
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from client.dashboard.app import Dashboard
    from client.gateway.gateway import Gateway


def mount(app: FastAPI, gateway: Gateway) -> Dashboard:
    """Add the pages to a gateway's application; they read from its start to its end."""
    from client.dashboard.app import Dashboard

    dashboard = Dashboard(gateway)
    dashboard.mount(app)
    app.state.dashboard = dashboard
    return dashboard


__all__ = ["mount"]
