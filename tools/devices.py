"""Prints which devices this machine has, as eas finds them."""

import eas.runtime


def state(name):
    try:
        runtime = eas.runtime.get_runtime(name)
    except Exception as e:  # the reason is what people want to see
        return f"not available: {e}"
    return "available" if runtime.is_available() else "not available"


for device, _, _ in eas._eas.devices():
    print(f"  {device:<7} {state(device)}")
