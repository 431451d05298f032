"""How true brim's counts are: small llama.cpp servers with real vocabularies and templates.

`python -m benchmarks.truth FOLDER` prints the figures; `benchmarks/README.md` says where the folder
comes from.
"""
