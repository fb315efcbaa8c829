"""How is one request followed across machines? By spans of OpenTelemetry, where they are collected.

Off unless `OTEL_EXPORTER_OTLP_ENDPOINT` is set; then nothing is imported and each call here is one
comparison. Spans travel with a request as W3C Trace Context (`traceparent`), over HTTP in a header,
between machines in `wire.Origin`.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from core.protocol.errors import ConfigError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
Attribute = str | int | float | bool

_tracer: Any = None
_provider: Any = None


_OFF: Final = nullcontext()


def set_up(service: str, *, exporter: SpanExporter | None = None) -> bool:
    """Collect spans from now on, if the environment says where to; whether it does.

    `service` is what they are filed under, unless `OTEL_SERVICE_NAME` says otherwise. An `exporter`
    gets each span as it ends, whatever the environment says. Raises ConfigError where the packages
    are missing.
    """
    global _tracer, _provider
    if exporter is None and not os.environ.get(ENDPOINT):
        return False
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            processor: Any = BatchSpanProcessor(OTLPSpanExporter())
        else:
            processor = SimpleSpanProcessor(exporter)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "traces cannot be sent",
            why=f"{ENDPOINT} is set and {error.name} is not installed",
            next_step="pip install 'headrace[otel]', or unset that variable",
        ) from None
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    _provider = TracerProvider(resource=Resource.create({"service.name": name}))
    _provider.add_span_processor(processor)
    _tracer = _provider.get_tracer("headrace")
    return True


def shut_down() -> None:
    """Send what is left, and collect nothing more."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        provider.shutdown()


def span(
    name: str, parent: str = "", **attributes: Attribute
) -> AbstractContextManager[Span | None]:
    """A span around a block and what it awaits, below `parent` (a `traceparent`) or ours."""
    if _tracer is None:
        return _OFF
    found: AbstractContextManager[Span | None] = _tracer.start_as_current_span(
        name, context=_context(parent), attributes=attributes
    )
    return found


def begin(name: str, parent: str | Span = "", **attributes: Attribute) -> Span | None:
    """A span that `end` ends, in any task, below `parent`; None where none are collected."""
    if _tracer is None:
        return None
    from opentelemetry import trace

    if isinstance(parent, str):
        context = _context(parent)
    else:
        context = trace.set_span_in_context(parent)
    found: Span = _tracer.start_span(name, context=context, attributes=attributes)
    return found


def end(found: Span | None, **attributes: Attribute) -> None:
    """The end of what `begin` began; more is known of it by now."""
    if found is not None:
        found.set_attributes(attributes)
        found.end()


def traceparent() -> str:
    """The span around us as it travels, "" where there is none."""
    if _tracer is None:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "")


def _context(parent: str) -> Any:
    if not parent:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent})
