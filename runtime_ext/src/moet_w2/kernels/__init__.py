"""From Python to the CUDA kernels of routed experts.

    params.py    the kernels' parameter structs
    cubins.py    which compiled file a device gets
    driver.py    loading and launching through the CUDA driver
    shapes.py    how a call is cut up: kernels, blocks, shared memory, workspace
    call.py      a call's arguments, checked
    experts.py   the call itself, and the torch operator ``moet_w2::experts``

Importing any of them needs no GPU.
"""
