"""Benchmarks of brim: quality, cost, recall, speed, shell and gateway, on real conversations.

`python -m benchmarks [FOLDER]` runs everything; each benchmark, such as `benchmarks.quality`,
also runs alone. `README.md` describes what each measures, and how.
"""
