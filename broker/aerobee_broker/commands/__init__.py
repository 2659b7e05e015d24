"""The sub-commands of `aerobee`, one module each: `add_parser` says what it takes, `run` does it.

The modules import argparse and nothing heavier at their top, so that `aerobee --help` is instant.
"""
