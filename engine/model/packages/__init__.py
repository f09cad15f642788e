"""Packages: a model that was cut once, in a folder of slices with a manifest (docs/packages.md).

`write` makes one, `check` looks a whole one over, `source` opens what `--model` names - a file or a package.
"""
