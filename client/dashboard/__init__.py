"""The dashboard: pages over one running gateway, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from client.dashboard.app import Dashboard
    from client.gateway.gateway import Gateway


def mount(app: FastAPI, gateway: Gateway) -> Dashboard:
    """Add the pages to a gateway's application. They begin to read with the application's start, and end with it."""
    from client.dashboard.app import Dashboard

    dashboard = Dashboard(gateway)
    dashboard.mount(app)
    app.state.dashboard = dashboard
    return dashboard


__all__ = ["mount"]
