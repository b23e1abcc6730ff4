"""Names for bench_runner.worker.agent to import; the small torchrun has no rendezvous."""


class Registry:
    def register(self, name, create):
        assert name == "loopback"


class RendezvousHandler:
    pass


rendezvous_handler_registry = Registry()
RendezvousInfo = RendezvousParameters = RendezvousStoreInfo = object
