"""The wire: RocketMQ's gRPC protocol and our own, as protobuf messages and gRPC stubs.

    from aerobee_proto import v2         # apache.rocketmq.v2: what every RocketMQ 5 client speaks
    from aerobee_proto import admin_v1   # aerobee.v1: topics, groups and state, for operators
    from aerobee_proto import pool       # the descriptor pool of both, Timestamp, Duration

The sources are `apache/rocketmq/v2/*.proto` and `aerobee/v1/*.proto` in this package; the generated code lies beside
them and `python -m aerobee_proto.generate` renews it. It lives in a descriptor pool of its own (`pool.py`), so that
an application can import the official RocketMQ client too.
"""
