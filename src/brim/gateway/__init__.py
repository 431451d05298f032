"""The gateway: fits every request into its model's context window and its key's caps.

asgi         the ASGI application: which path leads to which handler
gateway      the state of a running gateway, and its background work
completion   a request for a completion, fitted before it is forwarded
recall       a request whose calls of the tool `recall` the gateway answers
retrieval    what recent requests dropped
passthrough  a request that is forwarded unchanged
admin        all other paths: models, token counts, recent requests, metrics, health
dashboard/   the files of the dashboard, and its endpoints
handler      the client's side of a request, and what all handlers share
forward      sends a fitted request to its upstream, with fallback
fit_request  turns a body into the bytes that are sent
stream_monitor  reads a response while it passes through
routes       models at their upstreams, and what is known about them
billing      the maximum and the actual cost of one request
cost_fields  the fields of a body that affect its cost
account_service  the account store as one gateway uses it
accounts/    keys, caps, reservations and the ledger
alert_sender webhooks about caps
auth         authentication by key
limits       sizes, timeouts, concurrency, origins
headers      headers in both directions; options for one request
rate_headers response headers with the state of rate limits
bodies       formats and JSON of bodies
errors       error responses
records      recent requests
metrics      Prometheus metrics
logs         log lines
preflight    checks before the gateway serves
server       the HTTP server; http_protocol is one connection of it

Formats are not translated: a body is sent in the format in which it was received.
"""
