"""What brim promises about real servers, shown on a real one: the embedded llama.cpp.

`python -m proof` runs all of it and prints the figures; the tests run a small part of each.
"""
