"""Configuration: one YAML file, parsed once to frozen typed sections.

`sections` says what the file may hold; `load` reads it and finds what is wrong with it, each error
with its line and the nearest valid name; `units` turns `30s` and `32MiB` into numbers.
"""
