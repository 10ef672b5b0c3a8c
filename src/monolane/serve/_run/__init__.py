"""Requests on the engine: the queue, the decoding threads, what they report, what they measure."""
