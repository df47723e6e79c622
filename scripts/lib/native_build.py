def check(pins, native): raise NotImplementedError
def build(pins, native, configure_only): raise NotImplementedError
