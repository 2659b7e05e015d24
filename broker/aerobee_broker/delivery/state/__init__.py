"""The delivery state of queues, without I/O: what is in flight, ready and finished."""
