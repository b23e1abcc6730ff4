"""Collectives over message sizes: all-reduce in every profile, the others in ``full``."""

from bench_runner.suite import CollectiveMetrics


class Collectives(CollectiveMetrics):
    def track_latency(self, operation, devices, message_bytes):
        return self.value("latency", operation, devices, message_bytes)

    track_latency.unit = "seconds"
    track_latency.version = "1"

    def track_busbw(self, operation, devices, message_bytes):
        return self.value("busbw", operation, devices, message_bytes)

    track_busbw.unit = "bytes/s"
    track_busbw.version = "1"
    track_busbw.higher_is_better = True
