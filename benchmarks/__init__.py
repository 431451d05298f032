"""What brim is measured by: quality, cost, recall and speed, on real conversations.

`python -m benchmarks [FOLDER]` runs everything; each of `quality`, `cost`, `recall` and `speed`
also runs alone. `README.md` says what each measures, and how.
"""
