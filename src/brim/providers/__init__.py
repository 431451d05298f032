"""Clients for model servers.

endpoint         the address, format and credentials of a server
transport        requests as JSON or events, with retries and errors
connection_pool  the open connections to a server
http_connection  one HTTP/1.1 connection, and a response over it
server_counter   token counts from the server
server_info      the kind of a server, its models and their context windows
template_finder  the rules of the server's chat templates, found by trial
client           sends sessions: `Client` and `AsyncClient`
from_config      a client and a session as the configuration describes them
sync             coroutines called from synchronous code
local            the embedded model
"""
