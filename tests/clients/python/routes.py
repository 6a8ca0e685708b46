"""The routes that the published Python client calls, and those of them that the broker does not serve.

A scenario marked `@pytest.mark.route("METHOD /path")` may fail while its route stands in MISSING_ROUTES."""

MISSING_ROUTES = [
    "GET /api/v1/analytics/system-metrics",
    "GET /api/v1/analytics/worker-metrics",
    "GET /api/v1/traces/:/:",
    "GET /api/v1/traces/by-name/:",
    "GET /api/v1/traces/names",
    "POST /api/v1/traces",
]
