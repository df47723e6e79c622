"""2-bit routed experts for DeepSeek-V4-Flash in vLLM: planes, placement, correction."""
