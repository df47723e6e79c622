"""Checks of a running server. Nothing here starts one."""
