"""torchrun with one more rendezvous: ``python -m bench_runner.worker.agent`` takes torch.distributed.run's options.

All of torchrun's own rendezvous open their key-value store, which asks nobody for a password, on every address of the
host.  For one node ``--rdzv-backend=loopback`` opens it on the loopback alone, on a port that the kernel picks at that
moment unless the endpoint names one.  Nothing is asked of the store while the workers run.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.run import main

STORE_TIMEOUT = timedelta(seconds=600)


class LoopbackRendezvous(RendezvousHandler):
    """The rendezvous of one node: nobody to wait for, and a store that the workers reach as MASTER_ADDR:MASTER_PORT."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        if parameters.max_nodes != 1:
            raise ValueError(f"the loopback rendezvous is for one node, not for {parameters.max_nodes}")
        self._host, _, port = parameters.endpoint.partition(":")
        self._port = int(port or 0)
        self._run_id = parameters.run_id
        self._store: TCPStore | None = None

    def get_backend(self) -> str:
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            self._store = self._open()
        address = RendezvousStoreInfo(self._host, self._port)
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, address)

    def _open(self) -> TCPStore:
        listener = socket.create_server((self._host, self._port))
        self._port = listener.getsockname()[1]
        return TCPStore(
            self._host,
            self._port,
            is_master=True,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listener.detach(),
        )

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else could join."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


if __name__ == "__main__":
    rendezvous_handler_registry.register("loopback", LoopbackRendezvous)
    main()
