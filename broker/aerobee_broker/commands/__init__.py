"""The sub-commands of `aerobee`, one module each: `add_parser` declares the arguments, `run` executes the command.

The modules import argparse and nothing heavier at the top, so that `aerobee --help` is fast.
"""
