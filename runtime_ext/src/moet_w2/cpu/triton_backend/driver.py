"""Driver half of the ``cpu`` Triton backend: present so that it can be listed, never active, never launches."""

from typing import Any

from triton.backends.driver import DriverBase


class InterpretedCPUDriver(DriverBase):
    """Interpreted kernels need no driver; every method that would need a device raises."""

    def __init__(self) -> None:
        pass

    @classmethod
    def is_active(cls) -> bool:
        """False: Triton must not count this one when it looks for the device of a compiled kernel."""
        return False

    def _refuse(self, what: str) -> Any:
        raise RuntimeError(f"the cpu Triton backend interprets kernels and has no {what}")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return self._refuse(f"C++ type for {ty}")

    def get_current_target(self) -> Any:
        return self._refuse("compilation target")

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        return self._refuse("benchmarker")
