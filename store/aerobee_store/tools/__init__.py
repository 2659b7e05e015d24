"""What a person runs on a store: inspect, verify, dump. They open everything read-only and change nothing.

They work on a stopped store, on one after a crash, on damaged ones, on those that RocketMQ wrote, and on a store that a
broker is writing to at the time. File sizes are taken from the files, so no configuration is needed.
"""
