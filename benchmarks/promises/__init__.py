"""brim's promises about real servers, checked on a real one: the embedded llama.cpp.

`python -m benchmarks.promises` checks all of them and prints the figures; the tests check a small
part of each.
"""
