"""The version of Syncline: of the wheel, and what `syncline-run --version` says."""

VERSION = "0.1.0"
