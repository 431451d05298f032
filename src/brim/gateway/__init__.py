"""The gateway: one address for every client, and no request that exceeds its model's window.

app        the ASGI application, and what lives as long as it serves
answering  the client's side of a request
exchange   a request for an answer, fitted on its way
passage    a request that is passed on as it is
delivery   a request, fitted and brought to its upstream
fitting    a body made into the bytes that go out
watching   what is to be known of an answer while its bytes go by
lanes      the models at their upstreams, and what is known about them
beside     counts, models, what was done, health
forms      the three formats
bodies     JSON in and out
heads      headers in and out
wishes     what a client asks of brim by header
faults     errors in the shape of each format
limits     how large, how long, how many, and from where
records    the last requests: sizes and reasons, never what was said
metrics    the sums of them, for Prometheus
logs       a line for each of them
listing    the models on offer
openapi    all paths, described
serving    uvicorn, and how it ends; connection bounds what reaches it
starting   which upstreams there are; checking asks whether they can be used
asgi       the application for a server of your own

It does not translate: a body goes out in the format in which it came in.
"""
