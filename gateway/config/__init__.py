"""Configuration: one YAML file, parsed once to frozen typed sections.

`sections` says what the file may hold, `load` reads it and tells all that is wrong with it. Below
`load`: `yaml_tree` (values and their lines, `${NAME}`), `relations` (what several sections must
agree on), `explain` (an error in our words), `suggest` (the nearest valid name), `units` (`30s`,
`32MiB`) and `values` (addresses, keys, digests).
"""
