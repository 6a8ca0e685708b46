"""The routes that the published Python client calls, and those of them that the broker does not serve.

A scenario marked `@pytest.mark.route("METHOD /path")` may fail while its route stands in MISSING_ROUTES."""

MISSING_ROUTES = [
]
