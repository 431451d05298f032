"""The dashboard: a page for operators, and the endpoints that only it uses."""
