"""How busy the machine's devices are, by NVML; nothing where there is no NVML."""

from __future__ import annotations

import pynvml


def busiest_device_percent() -> float | None:
    """Utilisation of the busiest device in percent; None where no driver tells."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None  # no driver, no library: a machine without devices is legitimate
    try:
        count = pynvml.nvmlDeviceGetCount()
        rates = [pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(i)).gpu for i in range(count)]
        return float(max(rates, default=0))
    except pynvml.NVMLError:
        return None  # not supported by this device (MIG), or lost: then the stacks alone decide
    finally:
        pynvml.nvmlShutdown()
