"""Traces of requests to inference services: single requests, or rates. Knows nothing of services or clusters."""

from hemiola.trace.requests.read import REQUEST_FORMATS, RequestTrace, read_requests

__all__ = ["REQUEST_FORMATS", "RequestTrace", "read_requests"]
