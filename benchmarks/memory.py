"""Memory of the trainings: the largest value over ranks and devices; the whole matrix is in the records."""

from bench_runner.suite import TrainingMetrics


class Memory(TrainingMetrics):
    def track_peak_allocated(self, strategy, devices, case):
        return self.value("peak_allocated", strategy, devices, case)

    track_peak_allocated.unit = "bytes"
    track_peak_allocated.version = "1"

    def track_peak_reserved(self, strategy, devices, case):
        return self.value("peak_reserved", strategy, devices, case)

    track_peak_reserved.unit = "bytes"
    track_peak_reserved.version = "1"

    def track_peak_rss(self, strategy, devices, case):
        return self.value("peak_rss", strategy, devices, case)

    track_peak_rss.unit = "bytes"
    track_peak_rss.version = "1"
