"""Training steps under single, DataParallel and DistributedDataParallel."""

from bench_runner.suite import TrainingMetrics


class Training(TrainingMetrics):
    def track_throughput(self, strategy, devices, case):
        return self.value("throughput", strategy, devices, case)

    track_throughput.unit = "samples/s"
    track_throughput.version = "1"
    track_throughput.higher_is_better = True

    def track_time_per_sample(self, strategy, devices, case):
        return self.value("time_per_sample", strategy, devices, case)

    track_time_per_sample.unit = "seconds"
    track_time_per_sample.version = "1"

    def track_step_time(self, strategy, devices, case):
        return self.value("step_time", strategy, devices, case)

    track_step_time.unit = "seconds"
    track_step_time.version = "1"

    def track_exposed_communication(self, strategy, devices, case):
        return self.value("exposed_communication", strategy, devices, case)

    track_exposed_communication.unit = "seconds"
    track_exposed_communication.version = "1"

    def track_energy_per_sample(self, strategy, devices, case):
        return self.value("energy_per_sample", strategy, devices, case)

    track_energy_per_sample.unit = "joules"
    track_energy_per_sample.version = "1"
