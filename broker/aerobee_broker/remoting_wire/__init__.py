"""The remoting protocol of RocketMQ 4 on the wire: frames, fields, codes and connections."""
