"""Tools for operators: inspect, verify, dump. They open everything read-only and change nothing.

They work on stopped, crashed or damaged stores, on stores written by RocketMQ, and on a store that a broker is writing
to. Sizes are taken from the files, so no configuration is needed.
"""
