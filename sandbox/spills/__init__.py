"""A tool's result on its way into a file.

unwrap     what MCP and its servers put around a result, taken off
layout     what a result is, and its lines
shape      a structural map of a JSON document
spill      the steps, and what the model is told
shorten    an error in full and in short
extract    a part of a JSON document, by a path
search     lines of a file, by a pattern
"""
