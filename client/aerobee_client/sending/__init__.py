"""Between a producer and the wire: gathers messages into requests, and sends them."""
