"""What vLLM lacks to serve this model on a CPU: capability, gates, plain operations, plain kernels."""


def attach(isa: str | None = None) -> None:
    """placeholder"""
