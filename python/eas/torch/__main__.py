"""`python -m eas.torch`: what this torch offers, and which tier launches with its tensors use."""

import argparse
import json
import sys

from . import probe


def text(facts):
    yes = {True: "yes", False: "no"}
    lines = [
        f"torch                      {facts['torch']}",
        "cpu tensors                zero copy, both ways",
        f"cpu arguments are read by  {facts['arguments']}",
        f"DLPack's table             {yes[facts['dlpack_table']]}",
        f"mps available              {yes[facts['mps']]}",
        f"torch.mps.compile_shader   {yes[facts['compile_shader']]}",
    ]
    if facts["mps"]:
        lines.append(f"DLPack of mps tensors      {facts['mps_dlpack']}")
        lines.append(f"torch.mps.synchronize() before launches of tier A  {yes[facts['mps_sync']]} (EAS_TORCH_MPS_SYNC)")
    lines.append(f"tier of mps launches       {facts['tier']}: {facts['why']}")
    return "\n".join(lines)


def main(argv):
    p = argparse.ArgumentParser(
        prog="python -m eas.torch", description="What the installed torch offers, and which tier launches with its tensors use; exit code 1 without torch."
    )
    p.add_argument("--json", action="store_true", help="for programs")
    opts = p.parse_args(argv)
    try:
        facts = probe()
    except (RuntimeError, ValueError) as e:
        print(e, file=sys.stderr)
        return 1
    print(json.dumps(facts, indent=2) if opts.json else text(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
