"""Checkpoints: rank 0 saves, every rank loads to its own device.  In the profiles ``standard`` and ``full``."""

from bench_runner.suite import CheckpointMetrics


class Checkpoint(CheckpointMetrics):
    def track_save_time(self, strategy, devices, case):
        return self.value("save_time", strategy, devices, case)

    track_save_time.unit = "seconds"
    track_save_time.version = "1"

    def track_load_time(self, strategy, devices, case):
        return self.value("load_time", strategy, devices, case)

    track_load_time.unit = "seconds"
    track_load_time.version = "1"

    def track_size(self, strategy, devices, case):
        return self.value("checkpoint_size", strategy, devices, case)

    track_size.unit = "bytes"
    track_size.version = "1"

    def track_peak_rss(self, strategy, devices, case):
        return self.value("peak_rss", strategy, devices, case)

    track_peak_rss.unit = "bytes"
    track_peak_rss.version = "1"
