"""The engine: everything except the user interface.

Data flows down this list of packages and never back up: `config` and `model` describe what to run,
`compute` runs a slice of it, `protocol` and `transport` carry windows between machines, `stage` is the
process that serves one slice, `speculation` decides what to verify, `coordinator` drives one answer,
`client` is what front ends use, `cli` prints it.
"""

__version__ = "0.1.0"
